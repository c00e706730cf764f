"""The benchmark of metrics on a planted truth: a metric that measures it well ranks well, and its noise is told."""

import numpy as np
import pytest

from benchmarks import metric_power
from lamina.relevance.columns import Context, from_table
from tests.unit.test_expected_accuracy import table


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], dict]:
    draw = np.random.default_rng(0)
    base = draw.normal(0, 1.5, (1200, 4))
    base[:, 0] += 2
    moved = base + draw.normal(0, 0.5, (12, 1200, 4))
    moved[..., 0] -= np.linspace(0, 0.6, 12)[:, None]
    columns = from_table(table(np.concatenate([base[None], moved])))
    found = metric_power.power(columns, Context(0.25, "acc"), ["accuracy", "margin", "cosine"], [40, 160, 900], 60)
    return {(row["metric"], row["samples"]): row for row in found}


def test_the_margin_ranks_better_than_accuracy_and_more_samples_better_than_few(rows: dict) -> None:
    assert rows["margin", 40]["spearman"] > rows["accuracy", 40]["spearman"] + 0.05
    assert rows["accuracy", 160]["spearman"] > rows["accuracy", 40]["spearman"]
    assert rows["margin", 40]["regret"] < rows["accuracy", 40]["regret"]
    assert rows["margin", 40]["lowest_quarter"] > rows["accuracy", 40]["lowest_quarter"]


def test_what_noise_takes_is_given_back(rows: dict) -> None:
    row = rows["accuracy", 40]
    assert row["spearman"] < row["disattenuated"] and row["disattenuated"] > 0.8
    assert row["spearman_low"] < row["spearman"] < row["spearman_high"]


def test_what_was_not_measured_and_sizes_without_a_rest_are_left_out(rows: dict) -> None:
    assert set(rows) == {(metric, size) for metric in ("accuracy", "margin") for size in (40, 160)}

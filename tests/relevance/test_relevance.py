"""Relevance scores of small sweeps whose answers are known, against numbers worked by hand."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from scipy.stats import beta, binomtest

from lamina.options.metrics import METRICS
from lamina.relevance import score
from lamina.relevance.columns import Context
from lamina.relevance.score import RelevanceRow
from lamina.relevance.statistics import MIN_SAMPLES, wilson_interval
from lamina.store import parquet
from lamina_workflow.report import queries
from tests import ROOT

N_SAMPLES = 200
SWEEP_KEYS = {"model": "m", "calibration": "c", "selector": "base", "removed": 0}


def sweep(
    accuracy: dict[str, float],
    losses: Mapping[str, float] | None = None,
    **columns: dict[str, float],
) -> pa.Table:
    """A sweep in which unit u answers the first accuracy[u] of its samples right.

    Losses (1 by default) and further columns have the same value on every sample, by unit.
    """
    losses = losses or {}
    rows: list[dict[str, Any]] = []
    for unit, unit_accuracy in accuracy.items():
        unit_values = {name: values[unit] for name, values in columns.items() if unit in values}
        for sample in range(N_SAMPLES):
            is_right = sample < unit_accuracy * N_SAMPLES
            row = {
                "unit": unit,
                "sample": sample,
                "correct": is_right,
                "correct_norm": is_right,
                "nll": losses.get(unit, 1.0),
                "n_tokens": 2,
                **unit_values,
            }
            rows.append(row)
    return parquet.from_rows("sweeps", rows, **SWEEP_KEYS)


def score_units(
    table: pa.Table, metric: str, context: Context | None = None
) -> dict[str, RelevanceRow]:
    """Rows of one metric by unit; the metric is scored together with all others."""
    if context is None:
        context = Context(chance=0.25, score="acc")
    rows = score.score_sweep(table, METRICS, context, seed=0)
    return {row["unit"]: row for row in rows if row["metric"] == metric}


def test_accuracy_relevance_is_the_share_of_accuracy_above_chance_that_is_lost() -> None:
    table = sweep({"none": 0.75, "0": 0.25, "1": 0.5, "2": 0.8})

    scores = score_units(table, "accuracy", Context(chance=0.25, score="acc_norm"))

    assert scores["0"]["score"] == pytest.approx(1.0)
    assert scores["1"]["score"] == pytest.approx(0.5)
    assert scores["2"]["score"] == pytest.approx(1 - 0.55 / 0.5)
    assert [scores[unit]["rank"] for unit in ("2", "1", "0")] == [1, 2, 3]
    for row in scores.values():
        assert row["ci_low"] <= row["score"] <= row["ci_high"]
        assert row["n_samples"] == N_SAMPLES


def test_below_chance_counts_as_chance() -> None:
    scores = score_units(sweep({"none": 0.75, "0": 0.0}), "accuracy")

    assert scores["0"]["score"] == pytest.approx(1.0)


def test_a_base_model_at_chance_gives_no_score_but_a_reason() -> None:
    row = score_units(sweep({"none": 0.26, "0": 0.2}), "accuracy")["0"]

    assert row["score"] is None
    assert row["rank"] is None
    assert "not above chance (0.250)" in row["reason"]
    assert "200 samples" in row["reason"]


def test_of_units_that_lose_alike_the_deeper_one_ranks_first() -> None:
    table = sweep(
        {"none": 0.75, "0": 0.5, "1": 0.5, "2": 0.5},
        losses={"none": 1.0, "0": 3.0, "1": 2.0, "2": 2.0},
    )

    scores = score_units(table, "accuracy")

    assert [scores[unit]["rank"] for unit in "210"] == [1, 2, 3]
    assert scores["0"]["reason"] is None


def test_a_pruned_model_at_chance_is_ranked_by_right_answers_then_by_loss() -> None:
    table = sweep(
        {"none": 0.26, "0": 0.24, "1": 0.2, "2": 0.24},
        losses={"none": 1.0, "0": 3.0, "1": 2.0, "2": 2.0},
    )

    scores = score_units(table, "accuracy", Context(chance=0.25, score="acc", removed=2))

    assert [scores[unit]["rank"] for unit in "201"] == [1, 2, 3]
    assert "raw accuracy" in scores["0"]["reason"]


def test_perplexity_relevance_is_the_rise_of_the_loss_per_token() -> None:
    """From 1 to 4 nats, over two tokens."""
    table = sweep({"none": 0.75, "0": 0.5}, losses={"none": 1.0, "0": 4.0})

    scores = score_units(table, "perplexity")

    assert scores["0"]["score"] == pytest.approx(1.5)


@pytest.mark.parametrize(("choice_score", "drop"), [("acc", 1.5), ("acc_norm", 0.5)])
def test_margin_is_the_drop_of_the_lead_as_the_accuracy_compares_it(
    choice_score: str, drop: float
) -> None:
    table = sweep(
        {"none": 0.75, "0": 0.5},
        gold_margin={"none": 1.0, "0": -0.5},
        gold_margin_norm={"none": 0.25, "0": -0.25},
    )

    scores = score_units(table, "margin", Context(chance=0.25, score=choice_score))

    assert scores["0"]["score"] == pytest.approx(drop)


@pytest.mark.parametrize("n_without_choices", [1, 200])
def test_margin_is_refused_with_a_reason_where_samples_have_no_choices(
    n_without_choices: int,
) -> None:
    rows = sweep(
        {"none": 0.75, "0": 0.5},
        gold_margin={"none": 1.0, "0": 0.5},
        gold_margin_norm={"none": 1.0},
    ).to_pylist()
    for row in rows:
        if row["sample"] < n_without_choices:
            row |= {"correct_norm": None, "gold_margin": None, "gold_margin_norm": None}
    table = parquet.from_rows("sweeps", rows)

    row_of_unit = score_units(table, "margin", Context(chance=0.0, score="acc"))["0"]

    reason = f"{n_without_choices} of 200 samples have no choices, so no margin"
    assert row_of_unit["score"] is None
    assert row_of_unit["rank"] is None
    assert row_of_unit["reason"] == reason


@pytest.mark.parametrize(
    ("metric", "column"), [("agreement", "output_flips"), ("acceptance", "output_tv")]
)
def test_what_a_draft_model_would_lose_is_the_mean_over_samples(metric: str, column: str) -> None:
    table = sweep({"none": 0.75, "0": 0.5, "1": 0.5}, **{column: {"0": 0.25, "1": 0.0}})

    scores = score_units(table, metric)

    assert scores["0"]["score"] == pytest.approx(0.25)
    assert scores["1"]["rank"] == 1


def test_random_is_a_permutation_that_its_seed_decides() -> None:
    units = [str(layer) for layer in range(9)]
    table = sweep(dict.fromkeys(["none", *units], 0.5), magnitude=dict.fromkeys(units, 1.0))
    orders: set[tuple[Any, ...]] = set()

    for seed in range(20):
        scores = score_units(table, "random", Context(seed=seed))
        for row in scores.values():
            assert row["score"] == row["rank"]
            assert row["n_samples"] == 0
        order = tuple(scores[unit]["rank"] for unit in units)
        assert sorted(order) == list(range(1, 10))
        orders.add(order)

    assert len(orders) > 15


def test_only_measured_metrics_are_scored() -> None:
    table = sweep({"none": 0.75, "0": 0.5}, cosine={"0": 0.125})

    rows = score.score_sweep(table, METRICS, Context(chance=0.25, score="acc"), seed=0)

    scored_metrics = {row["metric"] for row in rows}
    assert scored_metrics >= {"accuracy", "perplexity", "cosine"}
    for metric in scored_metrics:
        assert METRICS[metric].columns[0] in ("correct", "nll", "cosine")
    (cosine_row,) = [row for row in rows if row["metric"] == "cosine"]
    assert cosine_row["score"] == pytest.approx(0.125)


def test_the_interval_of_a_difference_shrinks_with_what_samples_share() -> None:
    """Paired: a unit that loses the same ten samples in each draw has a narrow interval."""
    row = score_units(sweep({"none": 0.75, "0": 0.7}), "accuracy")["0"]

    assert row["ci_high"] - row["ci_low"] < 0.15


@pytest.mark.parametrize("n_trials", [1, 7, 20, 125, 500])
def test_wilson_interval_is_that_of_scipy(n_trials: int) -> None:
    for n_successes in (0, 1, n_trials // 3, n_trials // 2, n_trials):
        expected = binomtest(n_successes, n_trials).proportion_ci(method="wilson")

        interval = wilson_interval(n_successes, n_trials)

        assert interval == pytest.approx((expected.low, expected.high), abs=1e-7)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_row_in_the_docs(metric: str) -> None:
    page = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    table_rows = [line for line in page.splitlines() if line.startswith("| ")]
    first_cells = [row.split("|")[1] for row in table_rows]

    assert any(f"`{metric}`" in cell for cell in first_cells)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_column_in_view_relevance_wide(metric: str) -> None:
    views = queries.read_view_statements()
    start = views.index("FOR metric IN (")
    end = views.index("COMMENT ON VIEW relevance_wide")
    pivoted_metrics, *_ = views[start:end].split(")")

    assert f"'{metric}'" in pivoted_metrics


def extreme_sweep(n_samples: int) -> pa.Table:
    """Without layer 0 every answer is lost and every token changes; layer 1 changes nothing."""
    rows: list[dict[str, Any]] = []
    for sample in range(n_samples):
        for unit, is_right in {"none": True, "0": False, "1": True}.items():
            row: dict[str, Any] = {
                "unit": unit,
                "sample": sample,
                "correct": is_right,
                "correct_norm": is_right,
                "nll": float(sample % 3),
                "n_tokens": 1,
            }
            if unit != "none":
                row["output_flips"] = float(not is_right)
                row["cosine"] = 0.1 * (sample % 4)
            rows.append(row)
    return parquet.from_rows("sweeps", rows, **SWEEP_KEYS)


SAMPLE_COUNTS = [1, 20, 49, 50, 200]
RARE_CHANCE = Context(chance=0.01, score="acc")


@pytest.mark.parametrize("n_samples", SAMPLE_COUNTS)
def test_an_interval_of_accuracy_ends_at_1_and_contains_changes_that_were_not_seen(
    n_samples: int,
) -> None:
    scores = score_units(extreme_sweep(n_samples), "accuracy", RARE_CHANCE)

    all_lost = scores["0"]
    nothing_lost = scores["1"]
    assert all_lost["score"] == pytest.approx(1)
    assert all_lost["ci_low"] < 1 == all_lost["ci_high"]
    assert nothing_lost["score"] == 0
    assert nothing_lost["ci_low"] < 0 < nothing_lost["ci_high"] <= 1
    if n_samples > 1:
        assert all_lost["ci_low"] > 1 - 4 / n_samples
        assert nothing_lost["ci_high"] < 4 / n_samples


@pytest.mark.parametrize("n_samples", SAMPLE_COUNTS)
def test_an_interval_of_agreement_is_that_of_jeffreys_between_0_and_1(n_samples: int) -> None:
    """As Brown, Cai and DasGupta (2001) have it."""
    scores = score_units(extreme_sweep(n_samples), "agreement", RARE_CHANCE)

    all_changed = scores["0"]
    nothing_changed = scores["1"]
    assert all_changed["score"] == all_changed["ci_high"] == 1
    assert 0 <= all_changed["ci_low"] < 1
    assert nothing_changed["score"] == nothing_changed["ci_low"] == 0
    assert 0 < nothing_changed["ci_high"] <= 1
    if n_samples > 1:
        upper_end = beta.ppf(0.975, 0.5, n_samples + 0.5)
        assert nothing_changed["ci_high"] == pytest.approx(upper_end)


@pytest.mark.parametrize("n_samples", SAMPLE_COUNTS)
def test_means_of_few_samples_have_no_interval(n_samples: int) -> None:
    row = score_units(extreme_sweep(n_samples), "cosine", RARE_CHANCE)["0"]

    is_missing = n_samples < MIN_SAMPLES
    assert (row["ci_low"] is None) == is_missing
    assert (row["ci_high"] is None) == is_missing

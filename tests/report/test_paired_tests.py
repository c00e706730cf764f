"""Paired tests between selectors: against scipy, by simulation, and from the tables of a run."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import stats

from lamina.store import parquet
from lamina_workflow.report import answers, database, paired_tests, queries, summary
from tests.given.planted_tables import BASE_KEY, variant_key
from tests.given.plausible_tables import write_tables

# By selector and task: whether each document was answered right (1) or wrong (0).
ANSWERS = {
    "accuracy": {"sums": [1] * 20, "facts": [1] * 10 + [0] * 10},
    "cosine": {"sums": [0] * 12 + [1] * 8, "facts": [1] * 9 + [0] * 11},
    "deepest": {"sums": [0] * 6 + [1] * 14},
}


def test_right_and_wrong_answers_give_mcnemars_exact_test() -> None:
    differences = np.repeat([1.0, -1.0, 0.0], [9, 2, 50])
    exact_p_value = stats.binomtest(9, 11).pvalue

    p_value = paired_tests.compute_sign_flip_p_value(differences)
    scaled_p_value = paired_tests.compute_sign_flip_p_value(differences / 7)

    assert p_value == pytest.approx(exact_p_value)
    assert scaled_p_value == pytest.approx(exact_p_value)


def test_documents_that_do_not_differ_give_a_p_value_of_one() -> None:
    assert paired_tests.compute_sign_flip_p_value(np.zeros(5)) == 1


def test_few_values_give_the_p_value_of_all_sign_flips() -> None:
    differences = np.random.default_rng(1).normal(0.4, 1, 12)
    all_flips = np.array(list(product([-1, 1], repeat=12)))
    flipped_sums = all_flips @ differences
    exact_p_value = np.mean(np.abs(flipped_sums) >= abs(differences.sum()) - 1e-9)

    p_value = paired_tests.compute_sign_flip_p_value(differences)

    assert p_value == pytest.approx(exact_p_value)


def test_differences_that_all_point_one_way_survive_a_correction_for_many_tests() -> None:
    differences = np.random.default_rng(4).normal(1, 0.1, 30)

    p_value = paired_tests.compute_sign_flip_p_value(differences)

    assert p_value == pytest.approx(2 / 2**30)


def test_many_values_give_the_p_value_of_random_sign_flips() -> None:
    differences = np.random.default_rng(2).normal(0.2, 1, 60)
    random_flips = np.random.default_rng(3).choice([-1, 1], (20000, 60))
    flipped_sums = random_flips @ differences
    simulated_p_value = np.mean(abs(flipped_sums) >= abs(differences.sum()))

    p_value = paired_tests.compute_sign_flip_p_value(differences)

    assert p_value == pytest.approx(simulated_p_value, abs=0.02)


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order() -> None:
    corrected = paired_tests.correct_by_holm([0.04, 0.01, 0.03, 0.5])

    assert corrected == pytest.approx([0.09, 0.04, 0.09, 0.5])


def test_holm_corrects_to_one_at_most() -> None:
    assert paired_tests.correct_by_holm([0.9, 0.6]) == [1, 1]


def test_holm_corrects_no_values_to_none() -> None:
    assert paired_tests.correct_by_holm([]) == []


def answer_rows(key: Mapping[str, Any], task: str, values: list[int]) -> list[dict[str, Any]]:
    """Rows of `benchmark_samples` of one variant and task."""
    sample_key = {**key, "task": task, "metric": "acc"}
    return [
        {**sample_key, "sample": sample, "value": float(value)}
        for sample, value in enumerate(values)
    ]


def mean_row(key: Mapping[str, Any], task: str, values: list[int]) -> dict[str, Any]:
    """The row of `benchmarks` of one variant and task."""
    measured = dict(value=np.mean(values), stderr=0.1, higher_is_better=True)
    return {**key, "task": task, "metric": "acc", **measured}


def write_answers(folder: Path) -> duckdb.DuckDBPyConnection:
    """A study of selectors with these answers to each calibration's own task, one unit removed."""
    calibrations = []
    benchmarks = []
    samples = []
    for task in ("sums", "facts"):
        calibrations.append(
            dict(model="m", calibration=task, kind="choices", source=task, chance_accuracy=0.0)
        )
        benchmarks.append(mean_row(BASE_KEY, task, [1] * 20))
        samples += answer_rows(BASE_KEY, task, [1] * 20)
        for selector, answers_by_task in ANSWERS.items():
            if task in answers_by_task:
                key = variant_key(task, selector)
                benchmarks.append(mean_row(key, task, answers_by_task[task]))
                samples += answer_rows(key, task, answers_by_task[task])
    files = write_tables(
        folder, calibrations=calibrations, benchmarks=benchmarks, benchmark_samples=samples
    )
    return database.connect_views(files)


def test_selectors_are_compared_on_the_documents_that_both_answered(tmp_path: Path) -> None:
    comparisons = {
        (row["selector"], row["rival"], row["task"]): row
        for row in paired_tests.compare_selectors(write_answers(tmp_path))
    }

    assert set(comparisons) == {
        ("accuracy", "cosine", "sums"),
        ("accuracy", "cosine", "facts"),
        ("accuracy", "cosine", "all"),
        ("accuracy", "deepest", "sums"),
        ("accuracy", "deepest", "all"),
        ("cosine", "deepest", "sums"),
        ("cosine", "deepest", "all"),
    }
    sums = comparisons["accuracy", "cosine", "sums"]
    assert sums["difference"] == pytest.approx(0.6)
    assert sums["n_samples"] == 20
    assert sums["n_different"] == 12
    assert sums["p_value"] == pytest.approx(2 / 2**12)
    assert sums["p_holm"] == pytest.approx(4 * 2 / 2**12)
    mean = comparisons["accuracy", "cosine", "all"]
    assert mean["difference"] == pytest.approx((0.6 + 0.05) / 2)
    assert mean["n_samples"] == 40
    assert mean["p_value"] == pytest.approx(2 / 2**13)
    assert mean["p_holm"] == pytest.approx(3 * 2 / 2**13)
    assert comparisons["cosine", "deepest", "sums"]["difference"] == pytest.approx(-0.3)


def test_the_report_counts_the_tasks_that_a_selector_wins(tmp_path: Path) -> None:
    comparisons = list(paired_tests.compare_selectors(write_answers(tmp_path)))
    parquet.write_table(
        tmp_path / "comparisons.parquet", parquet.from_rows("comparisons", comparisons)
    )
    files = [tmp_path / f"{table}.parquet" for table in parquet.TABLES]
    views = database.connect_views(files)
    query = queries.read_query("which_selector_wins")

    wins = {(row["selector"], row["rival"]): row for row in answers.query_rows(views, query)}
    sentence, table = summary.compare_selectors(views, [])

    accuracy_over_cosine = wins["accuracy", "cosine"]
    assert accuracy_over_cosine["winner"] == "accuracy"
    assert accuracy_over_cosine["better"] == 1
    assert accuracy_over_cosine["worse"] == 0
    assert accuracy_over_cosine["undecided"] == 1
    assert "selector accuracy against the others" in sentence
    assert isinstance(table, list)
    counts = {row["against"]: list(row.values())[1:] for row in table}
    assert counts["cosine"] == [1, 0, 1, "+32.5"]
    assert counts["deepest"][:3] == [0, 0, 1]

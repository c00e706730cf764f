"""Which layers tasks need: against plain loops, and a planted double dissociation."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from pyarrow import dataset

from lamina.relevance.dissociation import TaskRelevance, compare_tasks, dissociation_rows
from lamina.store import parquet

# Accuracy without each layer; the whole model has .9 and chance is .5 on every task.
ACCURACY_WITHOUT = {"a": [0.5, 0.9, 0.7, 0.9], "b": [0.9, 0.5, 0.7, 0.9], "guess": [0.5] * 4}


def sweep_rows(
    accuracy_without: dict[str, list[float]], n_samples: int, base_accuracy: float = 0.9
) -> list[dict[str, Any]]:
    """Rows of table `sweeps`.

    A removal costs the answers of the last samples in a random order of its own.
    """
    rows: list[dict[str, Any]] = []
    for task_index, (task, accuracies) in enumerate(accuracy_without.items()):
        generator = np.random.default_rng(task_index)
        task_accuracy = 0.5 if task == "guess" else base_accuracy
        n_right = round(task_accuracy * n_samples)
        accuracy_by_unit = {"none": task_accuracy}
        for layer, accuracy in enumerate(accuracies):
            accuracy_by_unit[str(layer)] = accuracy
        for unit, accuracy in accuracy_by_unit.items():
            n_kept = round(accuracy * n_samples)
            lost_samples = generator.permutation(n_right)[n_kept:]
            is_right = np.zeros(n_samples, bool)
            is_right[:n_right] = True
            is_right[lost_samples] = False
            for sample in range(n_samples):
                rows.append(sweep_row(task, unit, sample, bool(is_right[sample])))
    return rows


def sweep_row(task: str, unit: str, sample: int, is_right: bool) -> dict[str, Any]:
    return {
        "model": "m",
        "calibration": task,
        "selector": "base",
        "removed": 0,
        "unit": unit,
        "sample": sample,
        "correct": is_right,
        "correct_norm": is_right,
        "nll": 1.0,
        "n_tokens": 1,
    }


def calibration_rows(tasks: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"model": "m", "calibration": task, "chance_accuracy": 0.5, "choice_score": "acc_norm"}
        for task in tasks
    ]


def test_layers_that_only_one_task_needs_dissociate_both_ways() -> None:
    """By hand: without layer 0, task a loses all that is above chance and b nothing, so D = 1.

    Without layer 1 it is the reverse.
    """
    sweeps = parquet.from_rows("sweeps", sweep_rows(ACCURACY_WITHOUT, 200))

    rows = list(dissociation_rows(calibration_rows(ACCURACY_WITHOUT), dataset.dataset(sweeps)))

    pairs = {(row["calibration"], row["rival"]) for row in rows}
    assert pairs == {("a", "b")}, "a task at chance has no relevance"
    assert [row["difference"] for row in rows] == pytest.approx([1, -1, 0, 0])
    assert [row["sure"] for row in rows] == [True, True, False, False]
    assert [row["n_samples"] for row in rows] == [200] * 4
    # Both keep every answer without layer 3, which is no proof that none would change.
    assert -0.05 < rows[3]["ci_low"] < -0.01
    assert rows[3]["p_value"] > 0.9


def test_differences_intervals_and_corrections_equal_plain_loops() -> None:
    accuracy_without = {"a": [0.55, 0.8, 0.62], "b": [0.7, 0.72, 0.85]}
    table = parquet.from_rows("sweeps", sweep_rows(accuracy_without, 60))

    rows = list(dissociation_rows(calibration_rows(accuracy_without), dataset.dataset(table)))

    answers: dict[tuple[str, str], list[int]] = {}
    for row in table.to_pylist():
        answers.setdefault((row["calibration"], row["unit"]), []).append(int(row["correct"]))

    def relevance(task: str, unit: str, samples: list[int]) -> float:
        base_accuracy = np.mean([answers[task, "none"][sample] for sample in samples])
        cut_accuracy = np.mean([answers[task, unit][sample] for sample in samples])
        return 1 - max(cut_accuracy - 0.5, 0) / max(base_accuracy - 0.5, 0)

    generator = np.random.default_rng(7)
    drawn_differences: dict[str, list[float]] = {unit: [] for unit in "012"}
    split_differences: dict[tuple[str, str], list[float]] = {}
    for _ in range(1500):
        samples_of_a = generator.integers(0, 60, 60).tolist()
        samples_of_b = generator.integers(0, 60, 60).tolist()
        order = generator.permutation(60).tolist()
        for unit in "012":
            difference = relevance("a", unit, samples_of_a) - relevance("b", unit, samples_of_b)
            drawn_differences[unit].append(difference)
            for task in "ab":
                first_half = relevance(task, unit, order[:30])
                second_half = relevance(task, unit, order[30:])
                differences = split_differences.setdefault((task, unit), [])
                differences.append(first_half - second_half)

    all_samples = list(range(60))
    for row in rows:
        unit = row["unit"]
        difference = relevance("a", unit, all_samples) - relevance("b", unit, all_samples)
        assert row["difference"] == pytest.approx(difference)
        ends = np.percentile(drawn_differences[unit], [2.5, 97.5])
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(ends, abs=0.05)

        share_not_above = np.mean(np.array(drawn_differences[unit]) <= 0)
        share_not_below = np.mean(np.array(drawn_differences[unit]) >= 0)
        p_value = min(1, 2 * min(share_not_above, share_not_below))
        assert row["p_value"] == pytest.approx(p_value, abs=0.04)

        bands = [np.percentile(split_differences[task, unit], [2.5, 97.5]) for task in "ab"]
        assert row["null_low"] == pytest.approx(min(low for low, _ in bands), abs=0.06)
        assert row["null_high"] == pytest.approx(max(high for _, high in bands), abs=0.06)
    assert_benjamini_hochberg(rows)
    assert any(row["sure"] for row in rows)


def test_draws_without_a_relevance_count_against_a_difference() -> None:
    """A base model at chance in 400 of 1999 draws: p is at least 2 · 400 / 2000."""
    draws = np.full((2000, 1), 0.5)
    draws[1:401] = np.nan
    task = TaskRelevance(draws, np.zeros((100, 1)))
    rival = TaskRelevance(np.zeros((2000, 1)), np.zeros((100, 1)))

    columns = compare_tasks(task, rival)

    assert columns["p_value"].item() == pytest.approx(2 * 401 / 2000)
    assert not columns["sure"].item()


def assert_benjamini_hochberg(rows: list[Any]) -> None:
    """The k-th smallest of m p values times m / k, and never less than one before."""
    by_p_value = sorted(rows, key=lambda row: row["p_value"])
    q_value = 1.0
    for k in range(len(rows), 0, -1):
        q_value = min(q_value, by_p_value[k - 1]["p_value"] * len(rows) / k)
        assert by_p_value[k - 1]["q_value"] == pytest.approx(q_value)


def test_random_halves_of_one_task_do_not_dissociate() -> None:
    """Two draws of one task as two calibrations: no layer is significant."""
    accuracies = [0.6, 0.8, 0.7, 0.75]
    sweeps = parquet.from_rows("sweeps", sweep_rows({"a": accuracies, "b": accuracies}, 150))

    rows = list(dissociation_rows(calibration_rows("ab"), dataset.dataset(sweeps)))

    assert len(rows) == len(accuracies)
    assert not any(row["sure"] for row in rows)

"""Which layers tasks need: against plain loops, and a planted double dissociation."""

from typing import Any

import numpy as np
import pytest

from lamina.relevance import dissociation
from lamina.store import parquet as store

# Share of right answers without each layer; the whole model has .9 and chance is .5 on every task.
WITHOUT = {"a": [0.5, 0.9, 0.7, 0.9], "b": [0.9, 0.5, 0.7, 0.9], "guess": [0.5] * 4}


def swept(without: dict[str, list[float]], n: int, base: float = 0.9) -> list[dict[str, Any]]:
    """Rows of table `sweeps`: a removal costs the answers of the last samples of an order of its own."""
    rows = []
    for number, (task, shares) in enumerate(without.items()):
        rng = np.random.default_rng(number)
        whole = 0.5 if task == "guess" else base
        for unit, share in [
            ("none", whole),
            *((str(layer), share) for layer, share in enumerate(shares)),
        ]:
            right = np.zeros(n, bool)
            right[: round(whole * n)] = True
            right[rng.permutation(round(whole * n))[round(share * n) :]] = False
            for sample in range(n):
                keys = {
                    "model": "m",
                    "calibration": task,
                    "selector": "base",
                    "removed": 0,
                    "unit": unit,
                }
                yes = bool(right[sample])
                rows.append(
                    keys
                    | {
                        "sample": sample,
                        "correct": yes,
                        "correct_norm": yes,
                        "nll": 1.0,
                        "n_tokens": 1,
                    }
                )
    return rows


def facts(tasks: Any) -> list[dict[str, Any]]:
    return [
        {"model": "m", "calibration": task, "chance_accuracy": 0.5, "choice_score": "acc_norm"}
        for task in tasks
    ]


def test_layers_that_only_one_task_needs_dissociate_both_ways() -> None:
    """By hand: without layer 0, task a loses all that is above chance and b nothing, so D = 1; layer 1 the reverse."""
    rows = list(
        dissociation.dissociations(facts(WITHOUT), store.from_rows("sweeps", swept(WITHOUT, 200)))
    )
    assert {(row["calibration"], row["rival"]) for row in rows} == {("a", "b")}, (
        "a task at chance has no relevance"
    )
    assert [row["difference"] for row in rows] == pytest.approx([1, -1, 0, 0])
    assert [row["sure"] for row in rows] == [True, True, False, False]
    assert [row["n_samples"] for row in rows] == [200] * 4
    # Both keep every answer without layer 3, which is no proof that none would change.
    assert -0.05 < rows[3]["ci_low"] < -0.01 and rows[3]["p_value"] > 0.9


def test_differences_intervals_and_corrections_equal_plain_loops() -> None:
    without = {"a": [0.55, 0.8, 0.62], "b": [0.7, 0.72, 0.85]}
    table = store.from_rows("sweeps", swept(without, 60))
    rows = list(dissociation.dissociations(facts(without), table))
    right: dict[tuple[str, str], list[int]] = {}
    for row in table.to_pylist():
        right.setdefault((row["calibration"], row["unit"]), []).append(int(row["correct"]))

    def relevance(task: str, unit: str, chosen: list[int]) -> float:
        base, cut = (np.mean([right[task, name][i] for i in chosen]) for name in ("none", unit))
        return 1 - max(cut - 0.5, 0) / max(base - 0.5, 0)

    rng, everyone = np.random.default_rng(7), list(range(60))
    drawn: dict[str, list[float]] = {unit: [] for unit in "012"}
    apart: dict[str, dict[str, list[float]]] = {unit: {"a": [], "b": []} for unit in "012"}
    for _ in range(1500):
        ones, others = (rng.integers(0, 60, 60).tolist() for _ in range(2))
        mixed = rng.permutation(60).tolist()
        for unit in "012":
            drawn[unit].append(relevance("a", unit, ones) - relevance("b", unit, others))
            for task in "ab":
                apart[unit][task].append(
                    relevance(task, unit, mixed[:30]) - relevance(task, unit, mixed[30:])
                )
    for row in rows:
        unit = row["unit"]
        assert row["difference"] == pytest.approx(
            relevance("a", unit, everyone) - relevance("b", unit, everyone)
        )
        ends = np.percentile(drawn[unit], [2.5, 97.5])
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(ends, abs=0.05)
        least = min(np.mean(np.array(drawn[unit]) <= 0), np.mean(np.array(drawn[unit]) >= 0))
        assert row["p_value"] == pytest.approx(min(1, 2 * least), abs=0.04)
        bands = [np.percentile(apart[unit][task], [2.5, 97.5]) for task in "ab"]
        assert row["null_low"] == pytest.approx(min(low for low, _ in bands), abs=0.06)
        assert row["null_high"] == pytest.approx(max(high for _, high in bands), abs=0.06)
    # Benjamini and Hochberg: the k-th smallest of m times m / k, and never less than one before.
    ordered = sorted(rows, key=lambda row: row["p_value"])
    least = 1.0
    for place in (3, 2, 1):
        least = min(least, ordered[place - 1]["p_value"] * 3 / place)
        assert ordered[place - 1]["q_value"] == pytest.approx(least)
    assert any(row["sure"] for row in rows)


def test_random_halves_of_one_task_do_not_dissociate() -> None:
    """Two draws of one task as two calibrations: no layer is sure."""
    table = store.from_rows(
        "sweeps", swept({"a": [0.6, 0.8, 0.7, 0.75], "b": [0.6, 0.8, 0.7, 0.75]}, 150)
    )
    assert not any(row["sure"] for row in dissociation.dissociations(facts("ab"), table))

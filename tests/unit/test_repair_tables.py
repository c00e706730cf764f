"""The paired intervals of benchmarks/repair.py: over documents, and over cases and seeds."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "benchmarks/repair_tables.py"
spec = importlib.util.spec_from_file_location("repair_tables", FILE)
assert spec is not None and spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


def answers(seed: int, share: float, count: int) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < share


def test_the_mean_is_over_documents_then_seeds_then_cases_that_both_have() -> None:
    one = {("a", 0): answers(0, 0.9, 50), ("a", 1): answers(1, 0.8, 50), ("b", 0): answers(2, 0.7, 30)}
    other = {cell: answers(number, 0.5, len(right)) for number, (cell, right) in enumerate(one.items(), 3)}
    expected = {
        cell: np.mean([float(x) - float(y) for x, y in zip(one[cell], other[cell], strict=True)]) for cell in one
    }
    found = tables.difference(one | {("c", 0): answers(9, 1.0, 10)}, other)
    assert found.mean == pytest.approx(((expected["a", 0] + expected["a", 1]) / 2 + expected["b", 0]) / 2)
    assert found.n_cells == 3
    assert tables.difference(one, {("c", 0): answers(9, 1.0, 10)}) is None


def test_documents_are_paired_and_their_interval_is_as_wide_as_theory_says() -> None:
    right, wrong_too = answers(0, 0.8, 4000), answers(1, 0.1, 4000)
    other = right & ~wrong_too
    found = tables.difference({("a", 0): right}, {("a", 0): other})
    gap = right.astype(float) - other
    half = 1.96 * gap.std() / len(gap) ** 0.5
    assert found.documents == pytest.approx((gap.mean() - half, gap.mean() + half), abs=0.15 * half)
    # Were the two not paired, what they share would widen the interval by far.
    assert 2 * half < 1.96 * (right.var() / 4000 + other.var() / 4000) ** 0.5 * 2


def test_more_seeds_on_the_same_documents_say_nothing_new_of_documents_but_a_case_with_other_documents_does() -> None:
    one, other = answers(0, 0.8, 500), answers(1, 0.6, 500)
    once = tables.difference({("a", 0): one}, {("a", 0): other})
    thrice = tables.difference({("a", s): one for s in range(3)}, {("a", s): other for s in range(3)})
    assert thrice.documents == pytest.approx(once.documents)
    cases = {f"case {n}": (answers(2 * n, 0.8, 500), answers(2 * n + 1, 0.6, 500)) for n in range(9)}
    many = tables.difference({(c, 0): x for c, (x, _) in cases.items()}, {(c, 0): y for c, (_, y) in cases.items()})
    assert np.ptp(many.documents) == pytest.approx(np.ptp(once.documents) / 3, rel=0.2)


def test_over_tasks_the_interval_is_students_t_and_seeds_of_a_task_are_one() -> None:
    """By hand: three tasks differ by .1, .4 and .7, so .4 ± 4.303 · .3 / √3; the seeds of a task add nothing."""
    gaps = {("a", 0): 0.0, ("a", 1): 0.2, ("b", 0): 0.3, ("b", 1): 0.5, ("c", 0): 0.7}
    one = {cell: np.full(10, gap) for cell, gap in gaps.items()}
    found = tables.difference(one, {cell: np.zeros(10) for cell in gaps})
    assert found.documents == pytest.approx((0.4, 0.4)) and (found.n_cases, found.n_cells) == (3, 5)
    half = 4.302653 * 0.3 / 3**0.5
    assert found.cases == pytest.approx((0.4 - half, 0.4 + half))
    assert np.isnan(tables.over_tasks(np.array([0.4]))).all()

"""Strategy `pairwise`: the best set by single and pair effects, against every set tried and models really cut."""

from itertools import combinations

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.options.selectors import Selector
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.strategies import pairwise
from lamina.selection.trials import Search, Trials
from tests.engine.test_sweep import naive, random_samples
from tests.given import tiny
from tests.selection.test_search import SAMPLES, UNITS, Toy, search

OPTIONS = Selector.from_options({"strategy": "pairwise", "metric": "perplexity"})


def least(alone: np.ndarray, together: np.ndarray, size: int) -> list[int]:
    """By trying every set."""
    every = [list(some) for some in combinations(range(len(alone)), size)]
    return min(every, key=lambda some: alone[some].sum() + together[np.ix_(some, some)].sum() / 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_sum_over_eight_units_is_that_of_trying_every_set(seed: int) -> None:
    draw = np.random.default_rng(seed)
    alone, together = draw.normal(size=8), np.triu(draw.normal(size=(8, 8)), 1)
    for size in range(1, 9):
        assert pairwise.minimise(alone, together + together.T, size) == least(
            alone, together + together.T, size
        )


@pytest.mark.parametrize("seed", range(3))
def test_where_losses_are_singles_and_pairs_the_best_set_of_every_size_is_found(seed: int) -> None:
    toy = Toy(seed)
    found = pairwise.find(search(toy), UNITS, [3, 5], OPTIONS)
    for size, candidate in found.items():
        assert candidate.removed == frozenset(min(combinations(UNITS, size), key=toy.mean))
    assert len(set(toy.asked)) == len(toy.asked) == (1 + 10 + 45) * SAMPLES


def test_pair_effects_that_sampling_explains_shrink_to_their_mean() -> None:
    """Pairs that add nothing on average, and one that adds 2, with little noise and with much of it."""
    draw, units = np.random.default_rng(0), ["0", "1", "2", "3", "4", "5"]
    kept = {}
    for noise in (0.01, 30.0):
        sets = [frozenset(some) for size in range(3) for some in combinations(units, size)]
        losses = {each: 1 + 2 * (each == {"0", "1"}) + draw.normal(0, noise, 100) for each in sets}
        _, together = pairwise.estimate_effects(losses, units)
        assert np.allclose(together, together.T) and not np.diag(together).any()
        kept[noise] = together[np.triu_indices(6, 1)].std()
    raw = [2.0, *[0.0] * 14]
    assert kept[0.01] == pytest.approx(np.std(raw), rel=0.01)
    assert kept[30.0] < 0.5


def test_effects_are_those_of_models_really_cut() -> None:
    model, samples, units = tiny.model(depth=5), random_samples(3, count=10), list("01234")
    gold = np.cumsum([0, *(len(sample.rows) for sample in samples[:-1])]) + [
        sample.gold for sample in samples
    ]
    sets = [frozenset(some) for size in range(3) for some in combinations(units, size)]
    cut = {each: -naive(model, samples, sorted(each))[gold] for each in sets}
    with sweep.open_session(model, samples, outputs=False) as session:
        trials = Trials(Evaluator(session, loss_of("perplexity", "acc")), len(samples))
        one = Search("x", trials, np.arange(10), np.ones(10))
        found = pairwise.find(one, units, [2, 3], OPTIONS)
    tried = {frozenset(row["units"]): row["loss"] for row in one.rows}
    assert tried == pytest.approx({each: losses.mean() for each, losses in cut.items()}, abs=1e-3)
    alone, together = pairwise.estimate_effects(cut, units)
    for size, candidate in found.items():
        assert candidate.removed == {units[number] for number in least(alone, together, size)}

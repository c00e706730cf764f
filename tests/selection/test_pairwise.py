"""Strategy `pairwise` against every set tried, and against models that were really cut."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.options.selectors import Selector
from lamina.selection.evaluator import Evaluator
from lamina.selection.strategies import pairwise
from lamina.selection.trials import Search, Trials
from tests.given import tiny
from tests.given.cut_models import naive_gold_losses, random_samples
from tests.selection.examples import N_SAMPLES, UNITS, ToyLosses, toy_search

OPTIONS = Selector.from_options({"strategy": "pairwise", "metric": "perplexity"})


def sets_up_to_pairs(units: list[str]) -> list[frozenset[str]]:
    """The empty set, all single units and all pairs."""
    sets: list[frozenset[str]] = []
    for size in (0, 1, 2):
        sets += [frozenset(units_of_set) for units_of_set in combinations(units, size)]
    return sets


def best_of_all_sets(
    single_effects: np.ndarray, pair_effects: np.ndarray, size: int
) -> tuple[int, ...]:
    """The set of unit indices with the least sum of effects; `pair_effects` is symmetric."""

    def effect(indices: tuple[int, ...]) -> float:
        chosen = list(indices)
        pair_sum = pair_effects[np.ix_(chosen, chosen)].sum() / 2
        return float(single_effects[chosen].sum() + pair_sum)

    return min(combinations(range(len(single_effects)), size), key=effect)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_sum_over_eight_units_is_that_of_trying_every_set(seed: int) -> None:
    generator = np.random.default_rng(seed)
    single_effects = generator.normal(size=8)
    upper_triangle = np.triu(generator.normal(size=(8, 8)), 1)
    pair_effects = upper_triangle + upper_triangle.T

    for size in range(1, 9):
        minimum = pairwise.minimise(single_effects, pair_effects, size)

        assert tuple(minimum) == best_of_all_sets(single_effects, pair_effects, size)


@pytest.mark.parametrize("seed", range(3))
def test_where_only_pairs_interact_the_best_set_of_every_size_is_found(seed: int) -> None:
    toy = ToyLosses(seed)

    winners = pairwise.find(toy_search(toy), UNITS, [3, 5], OPTIONS)

    for size, winner in winners.items():
        best_set = min(combinations(UNITS, size), key=toy.mean_loss)
        assert winner.edits == frozenset(best_set)
    n_sets = 1 + 10 + 45
    assert len(toy.measured) == n_sets * N_SAMPLES
    assert len(set(toy.measured)) == len(toy.measured), "measured twice"


def test_units_whose_removal_overflows_are_removed_last() -> None:
    """Removals of 0, 1, 2 and 3 overflow alone, and that of 4 and 5 together."""

    class OverflowingLosses(ToyLosses):
        def sample_losses(self, removed_units: Iterable[str]) -> np.ndarray:
            removed = set(removed_units)
            losses = super().sample_losses(removed)
            if removed & {"0", "1", "2", "3"} or removed >= {"4", "5"}:
                losses[::4] = np.inf
            return losses

    toy = OverflowingLosses()
    winners = pairwise.find(toy_search(toy), UNITS, [4, 5, 7], OPTIONS)

    for size in (4, 5):
        assert np.isfinite(toy.mean_loss(winners[size].edits))
    assert len(winners[7].edits & {"0", "1", "2", "3"}) in (1, 2)


@pytest.mark.parametrize(("noise", "is_shrunk"), [(0.01, False), (30.0, True)])
def test_pair_effects_that_sampling_explains_shrink_to_their_mean(
    noise: float, is_shrunk: bool
) -> None:
    """One pair of fifteen adds 2 to the loss, the others add nothing."""
    generator = np.random.default_rng(0)
    units = [str(layer) for layer in range(6)]
    losses: dict[frozenset[str], np.ndarray] = {}
    for removed_units in sets_up_to_pairs(units):
        true_loss = 3 if removed_units == {"0", "1"} else 1
        losses[removed_units] = true_loss + generator.normal(0, noise, 100)

    _, pair_effects = pairwise.estimate_effects(losses, units)

    spread = pair_effects[np.triu_indices(6, 1)].std()
    true_spread = np.std([2.0] + [0.0] * 14)
    assert np.allclose(pair_effects, pair_effects.T)
    assert not np.diag(pair_effects).any()
    if is_shrunk:
        assert spread < 0.5
    else:
        assert spread == pytest.approx(true_spread, rel=0.01)


def test_effects_are_those_of_models_really_cut() -> None:
    model = tiny.model(depth=5)
    samples = random_samples(3, count=6)
    units = [str(layer) for layer in range(5)]
    cut_model_losses = {
        removed_units: naive_gold_losses(model, samples, removed_units)
        for removed_units in sets_up_to_pairs(units)
    }

    with sweep.open_session(model, samples, outputs=False) as session:
        trials = Trials(Evaluator(session, "perplexity", "acc"), len(samples))
        search = Search("x", trials, np.arange(6))
        winners = pairwise.find(search, units, [2, 3], OPTIONS)

    searched_losses = {frozenset(row["units"]): row["loss"] for row in search.rows}
    expected_losses = {
        removed_units: losses.mean() for removed_units, losses in cut_model_losses.items()
    }
    assert searched_losses == pytest.approx(expected_losses, abs=1e-3)
    single_effects, pair_effects = pairwise.estimate_effects(cut_model_losses, units)
    for size, winner in winners.items():
        expected_indices = best_of_all_sets(single_effects, pair_effects, size)
        assert winner.edits == {units[index] for index in expected_indices}

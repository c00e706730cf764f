"""Searches over whole sets: they find what trying everything finds, count what they ask, and go on after a kill."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.options import selectors
from lamina.repair.patch_store import FiledPatch, PatchStore
from lamina.selection import looped
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.looped import GrowingRepairs, Looped
from lamina.selection.strategies import evolutionary
from lamina.selection.trials import Search, SearchResult, Trials, run_search, split_samples
from tests.engine.test_sweep import random_samples
from tests.given import tiny
from tests.selection.test_loop import options as ghost_options

UNITS = [str(layer) for layer in range(10)]
SAMPLES = 40


class Toy:
    """Losses that are a function of the set and the sample: units interact, so that greedy is led astray."""

    def __init__(self, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.alone, self.pairs = draw.uniform(0, 1, 10), np.triu(draw.normal(0, 0.5, (10, 10)), 1)
        self.noise = draw.normal(0, 0.3, (SAMPLES, 10))
        self.asked: list[tuple[frozenset[str], int]] = []

    def measure_losses(self, candidates: Sequence[Candidate], numbers: Iterable[int]) -> np.ndarray:
        numbers = list(numbers)
        self.asked += [(one.removed, number) for one in candidates for number in numbers]
        return np.array([self.values(one.removed)[numbers] for one in candidates])

    def values(self, removed: Iterable[str]) -> np.ndarray:
        """Loss of each sample."""
        gone = sorted(map(int, removed))
        return (
            10
            + self.alone[gone].sum()
            + self.pairs[np.ix_(gone, gone)].sum()
            + self.noise[:, gone].sum(axis=1)
        )

    def mean(self, removed: Iterable[str], count: int = SAMPLES) -> float:
        return float(self.values(removed)[:count].mean())


def chosen(**values: Any) -> Any:
    return selectors.Selector.from_options(
        {"strategy": "evolutionary", "metric": "perplexity", **values}
    )


def search(toy: Any, log: Path | None = None, seen: int = SAMPLES) -> Search:
    return Search("x", Trials(toy, SAMPLES, log), np.arange(seen), np.full(SAMPLES, 10))


WAYS = [chosen(), chosen(stages=[[8, 100], [1, 10000]], generations=20)]


@pytest.mark.parametrize("options", WAYS)
def test_a_search_finds_what_trying_everything_finds(options: Any) -> None:
    """The best of the C(10, 3) sets; it may once end in a set from which the best one is three swaps away."""
    best = [frozenset(min(combinations(UNITS, 3), key=Toy(seed).mean)) for seed in range(10)]
    found = [
        evolutionary.find(search(Toy(seed)), UNITS, [3], options)[3].removed for seed in range(10)
    ]
    assert sum(one == other for one, other in zip(found, best, strict=True)) >= 9


@pytest.mark.parametrize("options", WAYS)
def test_the_seed_decides_and_protected_units_stay(options: Any) -> None:
    units = [unit for unit in UNITS if unit not in ("0", "4")]
    rows = []
    for seed in (0, 0, 1):
        one = search(Toy())
        evolutionary.find(one, units, [2, 3], options.model_copy(update={"seed": seed}))
        rows.append(one.rows)
        assert all(not {"0", "4"} & set(row["units"]) for row in one.rows)
    assert rows[0] == rows[1] != rows[2]


def test_generations_are_those_of_the_paper() -> None:
    """A first one, then k (L - k) / 1.5, with the children, stages, tokens and swaps that were asked for."""
    toy = Toy()
    one = search(toy)
    evolutionary.find(one, UNITS, [4], chosen(offspring=6, stages=[[3, 55], [1, 10000]]))
    assert max(row["step"] for row in one.rows) == 16
    parent: set[str] = set()
    for generation in range(17):
        first, last = (
            [r for r in one.rows if (r["step"], r["stage"]) == (generation, at)]
            for at in ("1", "2")
        )
        sets = [frozenset(row["units"]) for row in first]
        assert len(set(sets)) == len(sets) == 6 and frozenset(parent) not in sets
        assert {len(each) for each in sets} == {4}
        assert {row["n_samples"] for row in first} == {6} and {
            row["n_samples"] for row in last
        } == {SAMPLES}
        kept = [frozenset(row["units"]) for row in first if row["kept"]]
        assert [frozenset(row["units"]) for row in last if set(row["units"]) != parent] != []
        assert {frozenset(row["units"]) for row in last} == {
            *kept,
            *([frozenset(parent)] if parent else []),
        }
        if parent:
            assert {len(parent - each) for each in sets} <= {1, 2, 3}
        (winner,) = [row for row in last if row["kept"]]
        assert winner["loss"] == min(row["loss"] for row in last)
        parent = set(winner["units"])


def run(toy: Toy, log: Path | None = None, sizes: Sequence[int] = (2, 3)) -> SearchResult:
    trials = Trials(toy, SAMPLES, log, "this")
    lengths = np.full(SAMPLES, 100)
    return run_search(
        trials, UNITS, sizes, chosen(offspring=8), np.arange(30), np.arange(30, SAMPLES), lengths
    )


def test_the_ends_of_a_search_are_measured_on_samples_that_it_never_saw() -> None:
    toy = Toy(2)
    result = run(toy)
    assert len(set(toy.asked)) == len(toy.asked), "measured twice"
    ends = {
        (row["strategy"], row["removed"]): row for row in result.rows if row["stage"] == "held back"
    }
    assert set(ends) == {("none", 0), ("evolutionary", 2), ("evolutionary", 3)}
    held_back = {removed for removed, number in toy.asked if number >= 30}
    assert held_back == {frozenset(row["units"]) for row in ends.values()}
    for row in ends.values():
        own = toy.values(row["units"])[30:]
        assert row["loss"] == pytest.approx(np.mean(own)) and row["n_samples"] == 10
        assert row["loss_stderr"] == pytest.approx(np.std(own, ddof=1) / 10**0.5)
    assert result.losses[3] == pytest.approx(toy.mean(result.sets[3].removed, 30))


@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_a_killed_search_goes_on_to_the_same_result(after: int, tmp_path: Path) -> None:
    whole, log = Toy(1), tmp_path / "folder/search.log"
    expected = run(whole)

    class Killed(Toy):
        """Dies at a question."""

        left = after

        def measure_losses(
            self, candidates: Sequence[Candidate], numbers: Iterable[int]
        ) -> np.ndarray:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().measure_losses(candidates, numbers)

    killed, rest = Killed(1), Toy(1)
    with pytest.raises(KeyboardInterrupt):
        run(killed, log)
    with log.open("a") as file:
        file.write('{"units": [["1"], ["2')  # half a line
    again = run(rest, log)
    assert again == expected
    assert killed.asked + rest.asked == whole.asked
    # All is known now; a log of another search is worth nothing.
    assert run(done := Toy(1), log) == expected and not done.asked
    Trials(rest, SAMPLES, log, "other")
    assert run(anew := Toy(1), log) == expected and anew.asked == whole.asked


def test_samples_held_back_are_a_seeded_share_and_equal_ones_are_on_one_side() -> None:
    sequences = [(number % 30, 7) for number in range(50)]
    seen, held = split_samples(sequences, 0.2, 3)
    assert sorted([*seen, *held]) == list(range(50))
    assert len({sequences[number] for number in held}) == 6
    assert not {sequences[number] for number in held} & {sequences[number] for number in seen}
    assert (
        split_samples(sequences, 0.2, 3)[1].tolist()
        == held.tolist()
        != split_samples(sequences, 0.2, 4)[1].tolist()
    )
    with pytest.raises(LaminaError, match="held_back.* has 1, in samples: 9"):
        split_samples([(1, 2)] * 9, 0.5, 0)


@pytest.mark.parametrize("max_bytes", [0, 1 << 30])
def test_patches_are_fitted_as_they_are_needed(max_bytes: int) -> None:
    """On a model that is wrapped already; the numbers are those of fitting all at once on the samples of the search.

    Without memory for them, all patches wait in a file.
    """
    model, samples, seen = tiny.model(), random_samples(8, count=24), np.arange(0, 24, 3)
    sources = [Source([samples[number].sequence() for number in seen])]
    sets = [Candidate(frozenset(pair)) for pair in (("1", "3"), ("1", "2"), ("2", "4"), ("1", "3"))]
    at_once = looped.fit_loop_patches(model, sources, sets, ghost_options(), 0)
    fits: list[list[Candidate]] = []
    store = PatchStore(max_bytes=max_bytes)

    def fitted(candidates: Sequence[Candidate]) -> looped.Repairs:
        fits.append(list(candidates))
        return looped.fit_loop_patches(model, sources, candidates, ghost_options(), 0, store=store)

    with sweep.open_session(model, samples, outputs=False) as session:
        growing = GrowingRepairs(fitted, seen, len(samples), 5)
        asked = Evaluator(Looped(session, growing.repairs), loss_of("perplexity", "acc"))
        trials = Trials(asked, len(samples), prepare=growing.fit)
        found = np.concatenate([trials.measure_losses([one], np.arange(24))[0] for one in sets])
    assert [at_once.fold_of_sample[place] for place in range(8)] == [
        growing.repairs.fold_of_sample[number] for number in seen
    ]
    with sweep.open_session(model, samples, outputs=False) as session:
        whole = Looped(session, looped.Repairs(growing.repairs.fold_of_sample, at_once.patches, 5))
        expected = Evaluator(whole, loss_of("perplexity", "acc")).measure_losses(sets, range(24))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    runs = [sorted(unit for one in each for unit in one.removed) for each in fits[1:]]
    assert runs == [["1", "3"], ["1", "2"], ["2", "4"]], "nothing is fitted twice"
    kept = [patch for patches in growing.repairs.patches for patch in patches.values()]
    assert len(kept) == 2 * 5
    assert all(isinstance(patch, FiledPatch) == (max_bytes == 0) for patch in kept)

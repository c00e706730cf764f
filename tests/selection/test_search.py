"""Searches for whole sets of units: against all sets tried one by one, and against plain counts."""

from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.options.selectors import Selector
from lamina.repairs.patch_store import FiledPatch, PatchStore
from lamina.selection import looped
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.looped import GrowingRepairs, Looped, Repairs
from lamina.selection.strategies import evolutionary
from lamina.selection.trials import SearchResult, Trials, run_search, split_samples
from tests.given import tiny
from tests.given.cut_models import random_samples, token_sequences
from tests.selection.examples import N_SAMPLES, UNITS, ToyLosses, ghost_options, toy_search


def evolutionary_options(**options: Any) -> Any:
    settings = {"strategy": "evolutionary", "metric": "perplexity", **options}
    return Selector.from_options(settings)


EVOLUTIONS = {
    "default": evolutionary_options(),
    "two stages": evolutionary_options(stages=[[8, 100], [1, 10000]], generations=20),
}


@pytest.mark.parametrize("options", EVOLUTIONS.values(), ids=EVOLUTIONS.keys())
def test_a_search_finds_what_trying_everything_finds(options: Any) -> None:
    """In nine of ten tries: it may end in a set from which the best one is three swaps away."""
    n_best_found = 0
    for seed in range(10):
        toy = ToyLosses(seed)
        best_set = min(combinations(UNITS, 3), key=toy.mean_loss)

        winners = evolutionary.find(toy_search(toy), UNITS, [3], options)

        n_best_found += winners[3].edits == frozenset(best_set)
    assert n_best_found >= 9


@pytest.mark.parametrize("options", EVOLUTIONS.values(), ids=EVOLUTIONS.keys())
def test_the_seed_decides_and_protected_units_stay(options: Any) -> None:
    removable_units = [unit for unit in UNITS if unit not in ("0", "4")]

    def search_rows(seed: int) -> list[Any]:
        search = toy_search(ToyLosses())
        seeded_options = options.model_copy(update={"seed": seed})
        evolutionary.find(search, removable_units, [2, 3], seeded_options)
        return search.rows

    rows = search_rows(0)
    assert rows == search_rows(0)
    assert rows != search_rows(1)
    for row in rows:
        assert set(row["units"]) <= set(removable_units)


def test_generations_are_those_of_the_paper() -> None:
    """k (L - k) / 1.5 generations after the first, with the offspring, stages and tokens asked for.

    Children differ from their parent by at most three swaps; the parent competes in the last stage.
    """
    search = toy_search(ToyLosses())
    options = evolutionary_options(offspring=6, stages=[[3, 55], [1, 10000]])

    evolutionary.find(search, UNITS, [4], options)

    assert max(row["step"] for row in search.rows) == 4 * (10 - 4) / 1.5
    parent: frozenset[str] | None = None
    for generation in range(17):
        generation_rows = [row for row in search.rows if row["step"] == generation]
        first_stage = [row for row in generation_rows if row["stage"] == "1"]
        last_stage = [row for row in generation_rows if row["stage"] == "2"]

        children = {frozenset(row["units"]) for row in first_stage}
        assert len(first_stage) == len(children) == 6
        assert all(len(child) == 4 for child in children)
        # 55 tokens in samples of 10.
        assert all(row["n_samples"] == 6 for row in first_stage)
        if parent:
            assert parent not in children
            assert all(1 <= len(parent - child) <= 3 for child in children)

        finalists = {frozenset(row["units"]) for row in first_stage if row["kept"]}
        assert len(finalists) == 3
        if parent:
            finalists.add(parent)
        assert {frozenset(row["units"]) for row in last_stage} == finalists
        assert all(row["n_samples"] == N_SAMPLES for row in last_stage)

        (winner,) = [row for row in last_stage if row["kept"]]
        assert winner["loss"] == min(row["loss"] for row in last_stage)
        parent = frozenset(winner["units"])


def run_toy_search(toy: ToyLosses, log: Path | None = None, origin: str = "this") -> SearchResult:
    """Sets of two and three units; the last ten samples are held back."""
    return run_search(
        Trials(toy, N_SAMPLES, log, origin),
        UNITS,
        [2, 3],
        evolutionary_options(offspring=8),
        seen_indices=np.arange(30),
        heldback_indices=np.arange(30, N_SAMPLES),
        lengths=np.full(N_SAMPLES, 100),
    )


def test_the_ends_of_a_search_are_measured_on_samples_that_it_never_saw() -> None:
    toy = ToyLosses(2)

    result = run_toy_search(toy)

    assert len(set(toy.measured)) == len(toy.measured), "measured twice"
    end_rows = [row for row in result.rows if row["stage"] == "held back"]
    strategies_and_sizes = [(row["strategy"], row["removed"]) for row in end_rows]
    assert strategies_and_sizes == [("none", 0), ("evolutionary", 2), ("evolutionary", 3)]
    sets_on_held_back = {removed_units for removed_units, sample in toy.measured if sample >= 30}
    assert sets_on_held_back == {frozenset(row["units"]) for row in end_rows}
    for row in end_rows:
        held_back_losses = toy.sample_losses(row["units"])[30:]
        assert row["n_samples"] == 10
        assert row["loss"] == pytest.approx(np.mean(held_back_losses))
        assert row["loss_stderr"] == pytest.approx(np.std(held_back_losses, ddof=1) / 10**0.5)
    best_set = result.sets[3].edits
    assert result.losses[3] == pytest.approx(toy.mean_loss(best_set, n_samples=30))


class KilledToyLosses(ToyLosses):
    """Is interrupted after some measurements."""

    def __init__(self, seed: int, n_measurements: int) -> None:
        super().__init__(seed)
        self.n_measurements_left = n_measurements

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        if not self.n_measurements_left:
            raise KeyboardInterrupt
        self.n_measurements_left -= 1
        return super().measure_losses(candidates, sample_indices)


@pytest.mark.parametrize("n_measurements", [0, 1, 4, 9])
def test_a_killed_search_goes_on_to_the_same_result(n_measurements: int, tmp_path: Path) -> None:
    complete_toy = ToyLosses(1)
    complete_result = run_toy_search(complete_toy)
    log = tmp_path / "folder/search.log"
    killed_toy = KilledToyLosses(1, n_measurements)
    with pytest.raises(KeyboardInterrupt):
        run_toy_search(killed_toy, log)
    with log.open("a") as file:
        file.write('{"units": [["1"], ["2')  # half a line

    resumed_toy = ToyLosses(1)
    resumed_result = run_toy_search(resumed_toy, log)

    assert resumed_result == complete_result
    assert killed_toy.measured + resumed_toy.measured == complete_toy.measured


def test_a_finished_search_measures_nothing_again(tmp_path: Path) -> None:
    log = tmp_path / "search.log"
    result = run_toy_search(ToyLosses(1), log)
    repeated_toy = ToyLosses(1)

    assert run_toy_search(repeated_toy, log) == result
    assert not repeated_toy.measured


def test_the_log_of_another_search_is_not_used(tmp_path: Path) -> None:
    log = tmp_path / "search.log"
    toy = ToyLosses(1)
    result = run_toy_search(toy, log)
    repeated_toy = ToyLosses(1)

    assert run_toy_search(repeated_toy, log, origin="other") == result
    assert repeated_toy.measured == toy.measured


def test_samples_held_back_are_a_seeded_share_of_the_documents() -> None:
    """Equal samples are one document, and so on one side."""
    sequences = [(number % 30, 7) for number in range(50)]

    seen, held_back = split_samples(sequences, 0.2, 3)

    assert sorted([*seen, *held_back]) == list(range(50))
    seen_documents = {sequences[index] for index in seen}
    held_back_documents = {sequences[index] for index in held_back}
    assert len(held_back_documents) == 0.2 * 30
    assert not held_back_documents & seen_documents
    _, same_seed = split_samples(sequences, 0.2, 3)
    _, other_seed = split_samples(sequences, 0.2, 4)
    assert held_back.tolist() == same_seed.tolist()
    assert held_back.tolist() != other_seed.tolist()


def test_a_search_with_one_document_is_refused() -> None:
    with pytest.raises(LaminaError, match="held_back.* has 1, in samples: 9"):
        split_samples([(1, 2)] * 9, 0.5, 0)


@pytest.mark.parametrize("max_bytes", [0, 1 << 30])
def test_patches_are_fitted_when_a_search_needs_them(max_bytes: int) -> None:
    """Losses are those under patches that were all fitted at once, before the model was wrapped.

    Without memory for them, all patches wait in a file.
    """
    model = tiny.model()
    samples = random_samples(8, count=24)
    seen = np.arange(0, 24, 3)
    sources = [Source(token_sequences([samples[index] for index in seen]))]
    removed_pairs = [("1", "3"), ("1", "2"), ("2", "4"), ("1", "3")]
    candidates = [Candidate(frozenset(pair)) for pair in removed_pairs]
    repairs_at_once = looped.fit_loop_patches(model, sources, candidates, ghost_options(), 0)
    store = PatchStore(max_bytes=max_bytes)
    fitted_units: list[list[str]] = []

    def fit_candidates(lacking_runs: Sequence[Candidate]) -> Repairs:
        units = chain.from_iterable(candidate.edits for candidate in lacking_runs)
        fitted_units.append(sorted(units))
        return looped.fit_loop_patches(
            model, sources, lacking_runs, ghost_options(), 0, store=store
        )

    with sweep.open_session(model, samples, outputs=False) as session:
        growing = GrowingRepairs(fit_candidates, seen, len(samples), 5)
        evaluator = Evaluator(Looped(session, growing.repairs), loss_of("perplexity", "acc"))
        trials = Trials(evaluator, len(samples), prepare=growing.fit)
        losses: list[np.ndarray] = []
        for candidate in candidates:
            (candidate_losses,), _ = trials.measure_losses([candidate], np.arange(24))
            losses.append(candidate_losses)

    fold_of_sample = growing.repairs.fold_of_sample
    assert [fold_of_sample[index] for index in seen] == list(repairs_at_once.fold_of_sample)
    with sweep.open_session(model, samples, outputs=False) as session:
        complete_repairs = Repairs(fold_of_sample, repairs_at_once.patches, 5)
        evaluator = Evaluator(Looped(session, complete_repairs), loss_of("perplexity", "acc"))
        expected_losses = evaluator.measure_losses(candidates, range(24))
    np.testing.assert_allclose(losses, expected_losses, atol=1e-3)
    # No patch is fitted for the empty set that only draws the folds, and none is fitted twice.
    assert fitted_units == [[], ["1", "3"], ["1", "2"], ["2", "4"]]
    n_runs = 5
    for fold_patches in growing.repairs.patches:
        assert len(fold_patches) == n_runs
        for patch in fold_patches.values():
            assert isinstance(patch, FiledPatch) == (max_bytes == 0)

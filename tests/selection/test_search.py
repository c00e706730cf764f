"""What searches have in common: which samples decide, and how a killed one goes on."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.options.selectors import Selector
from lamina.selection.trials import SearchResult, Trials, run_search, split_samples
from tests.selection.examples import N_SAMPLES, UNITS, ToyLosses

# Removes one unit after the other, each time the one whose removal costs least.
OPTIONS = Selector.from_options({"strategy": "rearrange", "metric": "perplexity", "moves": 0})


def run_toy_search(toy: ToyLosses, log: Path | None = None, origin: str = "this") -> SearchResult:
    """Sets of two and three units; the last ten samples are held back."""
    return run_search(
        Trials(toy, N_SAMPLES, log, origin),
        UNITS,
        [2, 3],
        OPTIONS,
        seen_indices=np.arange(30),
        heldback_indices=np.arange(30, N_SAMPLES),
    )


def test_the_ends_of_a_search_are_measured_on_samples_that_it_never_saw() -> None:
    toy = ToyLosses(2)

    result = run_toy_search(toy)

    assert len(set(toy.measured)) == len(toy.measured), "measured twice"
    end_rows = [row for row in result.rows if row["stage"] == "held back"]
    strategies_and_sizes = [(row["strategy"], row["removed"]) for row in end_rows]
    assert strategies_and_sizes == [("none", 0), ("rearrange", 2), ("rearrange", 3)]
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


@pytest.mark.parametrize("n_measurements", [0, 1, 3, 6])
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


def test_a_search_that_proposes_other_sets_than_its_log_goes_on_without_the_rest(
    tmp_path: Path,
) -> None:
    log = tmp_path / "search.log"
    complete_toy = ToyLosses(1)
    complete_result = run_toy_search(complete_toy, log)
    complete_log = log.read_text()
    log_lines = complete_log.splitlines(keepends=True)
    other_measurement = json.loads(log_lines[3])
    other_measurement["units"][0] = ["9"]
    log_lines[3] = json.dumps(other_measurement) + "\n"
    log.write_text("".join(log_lines))

    resumed_toy = ToyLosses(1)
    assert run_toy_search(resumed_toy, log) == complete_result
    n_logged = sum(np.size(json.loads(line)["losses"]) for line in log_lines[1:3])
    assert resumed_toy.measured == complete_toy.measured[n_logged:]
    assert log.read_text() == complete_log


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
    with pytest.raises(LaminaError, match="held_back.* has 1 .samples: 9"):
        split_samples([(1, 2)] * 9, 0.5, 0)

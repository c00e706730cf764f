"""Budgets of memory: what is larger is done in turns, and what is planned covers what is held."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.engine import budgets, footprint, moments
from lamina.engine.footprint import Shape
from lamina.evaluation import perplexity
from lamina.evaluation.perplexity import Window
from lamina.models.boundary import Boundary
from lamina.models.surgery import find_runs
from lamina.options.selectors import Selector
from lamina.selection.sets import SearchRequest
from lamina_workflow.cost.estimate import most_runs
from tests.given import tiny

CHANNELS = 16
BOUNDARIES = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]


def count_held_bytes(boundaries: list[tuple[int, int]]) -> int:
    """Bytes of the matrices of both splits; runs with one start share a matrix."""
    splits = [
        moments.zero_moments(boundaries, CHANNELS, torch.device("cpu")) for _ in ("fit", "held out")
    ]
    bytes_by_storage: dict[int, int] = {}
    for sums_by_boundary in splits:
        for sums in sums_by_boundary.values():
            for matrix in (sums.xx, sums.xd):
                bytes_by_storage[matrix.data_ptr()] = matrix.untyped_storage().nbytes()
    return sum(bytes_by_storage.values())


@pytest.mark.parametrize("n_matrices", [0, 6, 10, 1000])
def test_sums_are_collected_in_turns_that_fit(n_matrices: int) -> None:
    memory = 2 * n_matrices * CHANNELS**2 * 8

    turns = list(moments.split_boundaries(BOUNDARIES, CHANNELS, memory))

    assert list(chain.from_iterable(turns)) == BOUNDARIES
    for turn in turns:
        assert count_held_bytes(turn) <= memory or len(turn) == 1
    for turn, next_turn in zip(turns[:-1], turns[1:], strict=True):
        one_more = [*turn, next_turn[0]]
        assert count_held_bytes(one_more) > memory, "a turn takes all that fit"


def test_the_loss_of_a_window_read_in_turns_is_that_of_all_its_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model("gemma2")
    windows: list[Window] = []
    for document, text in enumerate(tiny.tokens(3, 40).tolist()):
        n_context_tokens = 1 + 3 * document
        windows.append(Window(tuple(text), n_context_tokens, document))
    expected_losses = perplexity.document_nll(model, windows, 3, "a model")
    monkeypatch.setattr(perplexity, "logit_positions", lambda vocabulary: 7)

    losses = perplexity.document_nll(model, windows, 3, "a model")

    for (nll, n_tokens), (expected_nll, expected_n_tokens) in zip(
        losses, expected_losses, strict=True
    ):
        assert nll == pytest.approx(expected_nll, rel=1e-6)
        assert n_tokens == expected_n_tokens


@pytest.fixture(
    params=[(640, 262144), (4096, 151936), (8192, 128256)],
    ids=lambda sizes: f"{sizes[0]} channels, {sizes[1]} tokens",
)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Of 80 layers in two bytes."""
    channels, vocabulary = request.param
    return Shape(80, channels, 4 * channels, vocabulary, 2)


def test_more_texts_make_no_fit_larger(shape: Shape) -> None:
    bytes_of_200 = footprint.fit_peak_bytes(shape, 16384, 128, 200, 200)
    bytes_of_100_000 = footprint.fit_peak_bytes(shape, 16384, 128, 100_000, 100_000)

    assert bytes_of_200 == bytes_of_100_000


def test_more_sets_and_texts_make_no_pass_larger(shape: Shape) -> None:
    """Candidates are shared out over passes, which differ by a few streams."""
    few_bytes = footprint.sweep_bytes(shape, 16384, [128], 100, 127, 1000)
    many_bytes = footprint.sweep_bytes(shape, 16384, [128], 1000, 127, 10_000)

    assert many_bytes <= 1.05 * few_bytes


def test_no_vocabulary_makes_logits_larger_than_their_budget(shape: Shape) -> None:
    bytes_of_small_batch = footprint.sweep_bytes(shape, 64, [128], 1000, 127, 10_000)

    assert bytes_of_small_batch <= 4 * budgets.LOGIT_NUMBERS * shape.size


def test_waiting_patches_take_no_more_than_their_budget(shape: Shape) -> None:
    assert footprint.waiting_patch_bytes(shape, 10**6) == budgets.PATCH_BYTES


def test_as_many_runs_are_planned_as_real_sets_have() -> None:
    """Three layers far apart, and every exchange of one of them."""
    options = Selector.from_options({"strategy": "portfolio", "members": ["block"], "exchanges": 4})
    units = {"2", "6", "10"}
    sets = [units]
    for put_back in units:
        for new_unit in ("0", "4", "8", "13"):
            sets.append(units - {put_back} | {new_unit})

    runs: set[Boundary] = set()
    for units_of_set in sets:
        runs.update(find_runs(units_of_set, 16))

    assert len(runs) <= most_runs(options, 16, [3])


def test_no_more_runs_are_planned_than_there_are_pairs_of_boundaries() -> None:
    options = Selector.from_options({"strategy": "portfolio", "members": ["block"], "exchanges": 4})

    assert most_runs(options, 4, [1, 2, 3]) == 10


def test_a_file_of_patches_is_written_where_the_search_writes(tmp_path: Path) -> None:
    log = tmp_path / "searches" / "portfolio.log"
    no_model: Any = None

    request = SearchRequest(no_model, {}, None, [], {}, log=log)

    assert request.folder == log.parent
    assert log.parent.is_dir()

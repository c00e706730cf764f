"""What is too large for a budget is done in turns, and a budget counts what is really held."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.engine import budgets, footprint, moments
from lamina.engine.footprint import Shape
from lamina.evaluation import perplexity
from lamina.evaluation.perplexity import Window
from lamina.models.surgery import find_runs
from lamina.options.selectors import Selector
from lamina_workflow.cost.estimate import most_runs
from tests.given import tiny

BOUNDARIES = [(start, end) for start in range(4) for end in range(start + 1, 5)]


def held(boundaries: list[tuple[int, int]], channels: int) -> int:
    """Bytes of the matrices of both splits, each storage once."""
    storages: dict[int, int] = {}
    kept: list[Any] = []
    for _ in ("fit", "held out"):
        sums = moments.zero_moments(boundaries, channels, torch.device("cpu"))
        kept.append(sums)
        for of_run in sums.values():
            for matrix in (of_run.xx, of_run.xd):
                storages[matrix.data_ptr()] = matrix.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("matrices", [0, 6, 10, 1000])
def test_sums_are_collected_in_turns_that_fit(matrices: int) -> None:
    memory = 2 * matrices * 16**2 * 8
    turns = list(moments.split_boundaries(BOUNDARIES, 16, memory))
    assert [boundary for turn in turns for boundary in turn] == BOUNDARIES
    for turn, following in zip(turns, [*turns[1:], []], strict=True):
        assert held(turn, 16) <= memory or len(turn) == 1
        if following:
            assert held([*turn, following[0]], 16) > memory, "a turn takes all that fit"


def test_a_long_window_has_the_loss_of_its_logits_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model("gemma2")
    texts = tiny.tokens(3, 40).tolist()
    cut = [Window(tuple(text), 1 + 3 * number, number) for number, text in enumerate(texts)]
    whole = perplexity.document_nll(model, cut, 3, "a model")
    monkeypatch.setattr(perplexity, "logit_positions", lambda vocabulary: 7)
    parts = perplexity.document_nll(model, cut, 3, "a model")
    for (nll, count), (expected, scored) in zip(parts, whole, strict=True):
        assert nll == pytest.approx(expected, rel=1e-6) and count == scored


def test_no_number_of_sets_or_texts_and_no_vocabulary_makes_a_search_larger() -> None:
    """Beyond the stated budgets there is only what C decides: one turn of sums, and one decomposition."""
    for channels, vocabulary in ((640, 262144), (4096, 151936), (8192, 128256)):
        shape = Shape(80, channels, 4 * channels, channels, vocabulary, 2)
        few, many = (
            footprint.fit_peak_bytes(shape, 16384, 128, texts, texts) for texts in (200, 100_000)
        )
        assert few == many
        one, other = (
            footprint.sweep_bytes(shape, 16384, [128], lines, 127, streams)
            for lines, streams in ((100, 1000), (1000, 10_000))
        )
        # Candidates are shared out as evenly as they can be, so that a pass has a few streams more or fewer.
        assert other <= 1.05 * one
        logits = footprint.sweep_bytes(shape, 64, [128], 1000, 127, 10_000)
        assert logits <= 4 * budgets.LOGITS * shape.size
        assert footprint.waiting_patch_bytes(shape, 10**6) == budgets.PATCHES


def test_the_most_runs_are_no_fewer_than_those_of_real_sets() -> None:
    """Single layers far apart, and every exchange of one of them; and never more than there are pairs of boundaries."""
    entry = Selector.from_options({"strategy": "portfolio", "members": ["block"], "exchanges": 4})
    units = {"2", "6", "10"}
    sets = [units] + [units - {gone} | {new} for gone in units for new in ("0", "4", "8", "13")]
    found = {run for each in sets for run in find_runs(each, 16)}
    assert len(found) <= most_runs(entry, 16, [3])
    assert most_runs(entry, 4, [1, 2, 3]) == 10


def test_a_file_of_patches_is_written_where_the_search_writes(tmp_path: Path) -> None:
    from lamina.selection.sets import SearchRequest

    log = tmp_path / "searches" / "portfolio.log"
    request: Any = SearchRequest(None, {}, None, [], {}, log=log)  # type: ignore[arg-type]
    assert request.folder == log.parent and log.parent.is_dir()

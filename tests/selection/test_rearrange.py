"""Rearranged layers: what was planted in a model is found, and sizes and moves are as declared."""

import numpy as np
import pytest
import torch

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models.units import parse_edit
from lamina.options.selectors import Selector
from lamina.selection.evaluator import Evaluator
from lamina.selection.plans import UnitPrices
from lamina.selection.rounds import SearchSpace
from lamina.selection.strategies import rearrange
from lamina.selection.trials import Search, Trials
from tests.given import tiny
from tests.given.edited_models import hold_path
from tests.selection.examples import N_SAMPLES, UNITS, toy_search

N_TEXTS = 16
LENGTH = 48


def options(**settings: object) -> rearrange.Rearrange:
    made = Selector.from_options({"strategy": "rearrange", "metric": "perplexity", **settings})
    assert isinstance(made, rearrange.Rearrange)
    return made


def texts_written_by(model: torch.nn.Module) -> list[Sample]:
    """Texts that a model draws from its own distribution, so that it has the least loss on them."""
    torch.manual_seed(0)
    first_tokens = tiny.tokens(N_TEXTS, 1, seed=5)
    written = model.generate(  # type: ignore[operator]
        first_tokens,
        do_sample=True,
        top_k=0,
        max_new_tokens=LENGTH,
        eos_token_id=None,
        pad_token_id=3,
    )
    samples: list[Sample] = []
    for index, token_ids in enumerate(written.tolist()):
        row = Row(tuple(token_ids[:1]), tuple(token_ids[1:]), LENGTH)
        samples.append(Sample(index, "text", 0, (row,), ""))
    return samples


def test_exchanged_layers_are_put_right_and_a_duplicate_is_removed() -> None:
    original = tiny.model("llama")
    samples = texts_written_by(original)
    planted = hold_path(original, [0, 3, 2, 1, 4, 4])
    with sweep.open_session(planted, samples, 4000, outputs=False) as session:
        trials = Trials(Evaluator(session, "perplexity", "acc"), N_TEXTS)
        search = Search("rearrange", trials, np.arange(N_TEXTS))
        found = rearrange.find(search, [str(layer) for layer in range(6)], [1], options())

    assert found[1].edits in ({"1<>3", "4"}, {"1<>3", "5"})


@pytest.mark.parametrize(
    ("n_layers", "sizes"), [(4, [0, 3]), (6, [2]), (12, [3]), (24, [6]), (10, [1, 4, 9])]
)
def test_exchanges_that_all_gain_leave_layers_to_remove(n_layers: int, sizes: list[int]) -> None:
    class ExchangeLosses:
        """Every exchange gains 1, every other edit costs 1."""

        def measure_losses(self, candidates: list[Candidate], sample_indices: object) -> np.ndarray:
            losses = [
                50.0 + sum(-1 if "<>" in edit else 1 for edit in candidate.edits)
                for candidate in candidates
            ]
            return np.repeat(np.array(losses)[:, None], N_SAMPLES, axis=1)

    units = [str(layer) for layer in range(n_layers)]
    found = rearrange.find(toy_search(ExchangeLosses()), units[1:], sizes, options())
    assert {size: UnitPrices().size_of(set_.edits) for size, set_ in found.items()} == {
        size: size for size in sizes
    }


class DepthLosses:
    """Every layer of ten costs its number if it is removed; layer 6 gains 20 if it runs twice."""

    def measure_losses(self, candidates: list[Candidate], sample_indices: object) -> np.ndarray:
        losses: list[float] = []
        for candidate in candidates:
            removed = [edit for edit in candidate.edits if edit.isdigit()]
            gain = 20 * ("6x2" in candidate.edits)
            losses.append(50 + sum(map(int, removed)) - gain)
        return np.repeat(np.array(losses)[:, None], N_SAMPLES, axis=1)


def test_a_layer_that_runs_twice_is_paid_by_one_that_goes() -> None:
    found = rearrange.find(toy_search(DepthLosses()), UNITS, [1, 3], options())

    assert found[1].edits == {"0", "1", "6x2"}
    assert found[3].edits == {"0", "1", "2", "3", "6x2"}
    prices = UnitPrices()
    assert [prices.size_of(candidate.edits) for candidate in found.values()] == [1, 3]


def test_at_size_0_a_layer_runs_twice_and_another_is_removed() -> None:
    found = rearrange.find(toy_search(DepthLosses()), UNITS, [0, 1], options())

    assert found[0].edits == {"0", "6x2"}
    assert found[1].edits == {"0", "1", "6x2"}
    assert UnitPrices().size_of(found[0].edits) == 0


def test_at_size_0_the_best_move_is_made_also_if_none_gains() -> None:
    class PlainLosses(DepthLosses):
        """Every edit costs; the exchange of layers 3 and 5 costs least."""

        def measure_losses(self, candidates: list[Candidate], sample_indices: object) -> np.ndarray:
            losses = super().measure_losses(candidates, sample_indices)
            edits = [candidate.edits for candidate in candidates]
            costs = [30 * len(edit) - 29 * ("3<>5" in edit) for edit in edits]
            return losses + np.array(costs)[:, None]

    found = rearrange.find(toy_search(PlainLosses()), UNITS, [0, 1], options())

    assert found[0].edits == {"3<>5"}
    assert found[1].edits == {"0"}


def test_size_0_needs_two_layers_that_may_change_places() -> None:
    far_apart = [layer for layer in range(8) if layer not in (0, 7)]

    assert options(protect=[0, -1]).allowed_sizes(8) == range(7)
    assert options(protect=far_apart).allowed_sizes(8) == range(1, 3)
    assert options(moves=0).allowed_sizes(8) == range(1, 8)


def test_blocks_are_paid_by_as_many_layers() -> None:
    class BlockLosses(DepthLosses):
        def measure_losses(self, candidates: list[Candidate], sample_indices: object) -> np.ndarray:
            losses = super().measure_losses(candidates, sample_indices)
            gains = [20.0 * ("6-7x2~" in candidate.edits) for candidate in candidates]
            return losses - np.array(gains)[:, None]

    found = rearrange.find(toy_search(BlockLosses()), UNITS, [1], options(longest=2, damped=True))
    assert found[1].edits == {"0", "1", "2", "6-7x2~"}


def test_only_layers_that_may_change_are_moved() -> None:
    units = ["1", "2", "5", "6"]
    search = toy_search(DepthLosses())
    rearrange.find(search, units, [1], options(longest=2))
    changed: set[int] = set()
    for row in search.rows:
        for edit in row["units"]:
            changed.update(parse_edit(edit).layers)
    assert changed == {1, 2, 5, 6}


def test_the_forecast_measures_no_fewer_sets_than_the_search() -> None:
    search = toy_search(DepthLosses())
    rearrange.find(search, UNITS, [1, 3], options())
    measured = {frozenset(row["units"]) for row in search.rows}
    space = SearchSpace(UNITS, [1, 3], UnitPrices())
    rounds = list(rearrange.foresee_rounds(space, options()))
    foreseen = sum(len(a_round.candidates) for a_round in rounds)
    assert 0.7 * len(measured) <= foreseen <= 2 * len(measured)

"""Use layers differently: they change places, or one runs twice in place of another.

Layers are removed one by one. Before the first removal and after each, layers are exchanged with
each other or with layers of other models (arXiv 2506.20480). At each requested size, including 0,
some more are removed and as many run again. Moves without a gain on the choosing documents are not
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from lamina.engine.candidates import Candidate
from lamina.models.units import (
    Exchange,
    Repetition,
    list_blocks,
    list_replacements,
    parse_edit,
)
from lamina.options.entry import Filled, option, seed_option
from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, check_whole_layers, held_back_option, metric_option

if TYPE_CHECKING:
    from lamina.selection.rounds import Round, SearchSpace
    from lamina.selection.trials import Search


class Rearrange(Selector):
    """Removes layers greedily, swaps layers, and removes further ones to run others twice.

    Each move is the one with the lowest loss on the search documents. The winner is measured on the
    held-back documents, so this loss is not the lowest of many.
    """

    SEARCHES = True
    MOVES = True
    CHOICE = (
        "layers were removed greedily, swapped, or run twice in place of others, by the loss of "
        "the whole model"
    )

    strategy: Literal["rearrange"] = "rearrange"
    metric: MetricName = metric_option()
    moves: int = option("Maximum number of moves of one kind after a removal.", 2, ge=0)
    reach: int = option("Maximum distance between two layers that are swapped.", 4, ge=1)
    longest: int = option("Maximum number of layers in a block that runs twice.", 1, ge=1)
    donors: list[Filled] = option(
        "Sibling models (names under `donors`) whose layers may replace kept layers. `removed` "
        "counts only removed layers.",
        [],
        shown_default="none",
    )
    damped: bool = option("Whether layers that run twice are damped (arXiv 2605.23872).", False)
    width: int = option(
        "Number of layers that are cheapest to remove, and of blocks that are cheapest to "
        "repeat, that are tried in combination.",
        4,
        ge=1,
    )
    held_back: float = held_back_option()
    seed: int = seed_option()

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        check_whole_layers(self.units, self.strategy, "moves whole layers")
        return self

    def allowed_sizes(self, n_layers: int) -> range:
        free_layers = [layer for layer, is_free in enumerate(self.free(n_layers)) if is_free]
        can_exchange = any(other - layer <= self.reach for layer, other in pairwise(free_layers))
        smallest_size = 0 if (can_exchange or self.donors) and self.moves else 1
        return range(smallest_size, self.largest_removal(n_layers) + 1)


# Losses of equal models differ by less than this: batching rounds their streams differently.
ROUNDING = 1e-4


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Rearrange
) -> dict[int, Candidate]:
    """The best edits of each size; `units` are the layers that may be changed.

    At size 0 the base model needs no edit; there, the best move is made in any case.
    """
    exchanges = _list_exchanges(units, options)

    def list_exchanged(current: Candidate, size: int) -> list[Candidate]:
        return _exchange_layers(current, exchanges, units, max(sizes) - size)

    def list_traded(current: Candidate, size: int) -> list[Candidate]:
        return _trade_layers(search, current, units, size, options)

    current = Candidate()
    best_by_size: dict[int, Candidate] = {}
    for size in range(max(sizes) + 1):
        if size > 0:
            [current] = search.select_best(_add_edits(current, units), 1, size)
        current = _make_moves(search, current, size, list_exchanged, options)
        if size in sizes:
            best_by_size[size] = _make_moves(search, current, size, list_traded, options)

    if 0 in sizes and not best_by_size[0].edits:
        # No layer is removed from this model later, so any of them may move.
        moved = [*_add_edits(Candidate(), exchanges), *list_traded(Candidate(), 0)]
        [best_by_size[0]] = search.select_best(moved, 1, 0, "moved")
    return best_by_size


def _make_moves(
    search: Search,
    current: Candidate,
    size: int,
    list_moved: Callable[[Candidate, int], list[Candidate]],
    options: Rearrange,
) -> Candidate:
    """The candidate after moves of one kind, each the one that lowers the loss most."""
    for _ in range(options.moves):
        moved = list_moved(current, size)
        if not moved:
            break
        [best] = search.select_best(moved, 1, size, "moved")
        losses, _ = search.trials.measure_losses([current, best], search.sample_indices)
        current_loss, best_loss = losses.mean(axis=1)
        if best_loss >= (1 - ROUNDING) * current_loss:
            break
        current = best
    return current


def _add_edits(current: Candidate, edits: Sequence[str]) -> list[Candidate]:
    """The candidate with each of the edits that touch no layer it has already changed."""
    return [current.without(edit) for edit in edits if current.has_room_for(edit)]


def _exchange_layers(
    current: Candidate, exchanges: Sequence[str], units: Sequence[str], n_reserved: int
) -> list[Candidate]:
    """The candidate with one more exchange that leaves so many layers unchanged.

    Only an unchanged layer can be removed later.
    """
    n_spare = len(_add_edits(current, units)) - n_reserved
    spared = [edit for edit in exchanges if len(parse_edit(edit).layers) <= n_spare]
    return _add_edits(current, spared)


def _trade_layers(
    search: Search, current: Candidate, units: Sequence[str], size: int, options: Rearrange
) -> list[Candidate]:
    """The candidate with one block that runs again, and equally many layers fewer.

    Only the repetitions and the removals with the lowest loss on their own are combined.
    """
    removals = _add_edits(current, units)
    if not removals:
        return []
    removals = search.select_best(removals, options.width, size, "removed")
    repetitions = _add_edits(current, _list_repetitions(units, options))
    repetitions = search.select_best(repetitions, options.width, size, "repeated")
    added_removals = [edit for removal in removals for edit in removal.edits - current.edits]
    trades: list[Candidate] = []
    for repetition in repetitions:
        [block] = [parse_edit(edit) for edit in repetition.edits - current.edits]
        for removed in combinations(added_removals, len(block.layers)):
            if all(repetition.has_room_for(edit) for edit in removed):
                trades.append(repetition.without(*removed))
    return trades


def _list_repetitions(units: Sequence[str], options: Rearrange) -> list[str]:
    """All blocks of neighbouring layers, up to the longest allowed, run twice."""
    layers = [int(unit) for unit in units]
    repetitions: list[str] = []
    for length in range(1, options.longest + 1):
        for block in list_blocks(layers, length):
            repetitions.append(str(Repetition(block[0], block[-1], 2, options.damped)))
    return repetitions


def _list_exchanges(units: Sequence[str], options: Rearrange) -> list[str]:
    """All exchanges of two layers that are near each other, and all layers of donors."""
    pairs = combinations(sorted(int(unit) for unit in units), 2)
    near_pairs = [pair for pair in pairs if pair[1] - pair[0] <= options.reach]
    exchanges = [str(Exchange(*pair)) for pair in near_pairs]
    return [*exchanges, *list_replacements(units, options.donors)]


def foresee_rounds(space: SearchSpace, options: Rearrange) -> Iterator[Round]:
    """The removals and moves of all sizes, assuming that every move gains."""
    from lamina.selection.rounds import Round

    repetitions = _list_repetitions(space.units, options)
    exchanges = _list_exchanges(space.units, options)
    yield Round([Candidate()], 1.0)
    for size in range(max(space.sizes) + 1):
        current = Candidate(frozenset(space.units[:size]))
        yield Round(_add_edits(current, space.units), 1.0)
        for _ in range(options.moves):
            n_later = max(space.sizes) - size
            yield Round(_exchange_layers(current, exchanges, space.units, n_later), 1.0)
            if size in space.sizes:
                yield Round(_add_edits(current, [*space.units, *repetitions]), 1.0)

"""Let blocks of neighbouring layers run again: every block is tried.

If a block (i … j) runs twice, the path is 0 … j, i … j, j + 1 …, as in self-merged models. At size
-m the model has m layers more than the base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from lamina.engine.candidates import Candidate
from lamina.models.units import Repetition, list_blocks
from lamina.options.entry import option, seed_option
from lamina.options.metrics import MetricName
from lamina.options.selectors import Selector, check_whole_layers, held_back_option, metric_option

if TYPE_CHECKING:
    from lamina.selection.rounds import Round, SearchSpace
    from lamina.selection.trials import Search


class Repeat(Selector):
    """Tries every block whose repetition reaches the size, and takes the one with the lowest loss.

    The best of many blocks looks better than it is. It is measured again on samples that did not
    choose it.
    """

    SEARCHES = True
    MOVES = True
    GROWS = True
    CHOICE = (
        "every block of layers that could be repeated was tried, by the loss of the whole model"
    )

    strategy: Literal["repeat"] = "repeat"
    metric: MetricName = metric_option()
    times: int = option("Maximum number of times that a block runs.", 2, ge=2)
    damped: bool = option(
        "Whether every block is also tried with damping (arXiv 2605.23872), which keeps the "
        "change of the residual stream as large as in a single run.",
        False,
    )
    held_back: float = held_back_option()
    seed: int = seed_option()

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        check_whole_layers(self.units, self.strategy, "runs whole layers again")
        return self

    def allowed_sizes(self, n_layers: int) -> range:
        return range(-self.longest_free_run(n_layers), 0)


def find(
    search: Search, units: Sequence[str], sizes: Sequence[int], options: Repeat
) -> dict[int, Candidate]:
    """The best block of each size; a size is minus the number of layers that a block adds.

    `units` are the layers that may run again.
    """
    best_by_size: dict[int, Candidate] = {}
    search.select_best([Candidate()], 1, 0)
    for size in sizes:
        candidates = _list_candidates(units, -size, options)
        [best_by_size[size]] = search.select_best(candidates, 1, size)
    return best_by_size


def foresee_rounds(space: SearchSpace, options: Repeat) -> Iterator[Round]:
    """The base model, and all blocks of each size."""
    from lamina.selection.rounds import Round

    yield Round([Candidate()], 1.0)
    for size in space.sizes:
        yield Round(_list_candidates(space.units, -size, options), 1.0)


def _list_candidates(units: Sequence[str], n_added: int, options: Repeat) -> list[Candidate]:
    """Every block that adds `n_added` layers, damped and undamped."""
    layers = [int(unit) for unit in units]
    dampings = (False, True) if options.damped else (False,)
    candidates: list[Candidate] = []
    for times in range(2, options.times + 1):
        length, rest = divmod(n_added, times - 1)
        if rest:
            continue
        for block in list_blocks(layers, length):
            for is_damped in dampings:
                repetition = Repetition(block[0], block[-1], times, is_damped)
                candidates.append(Candidate(frozenset({str(repetition)})))
    return candidates

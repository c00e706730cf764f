"""A search, and greedy and one-shot removal with the same objective and samples as rivals. Other samples judge them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.modules import load
from lamina.selection.strategies import beam
from lamina.selection.trials import WINNER, Search, Trials

BASE = "none"


@dataclass(frozen=True)
class Result:
    """`sets` are the selector's own sets by size, `losses` the mean loss of each on the samples of the search, that
    of the unpruned model under 0, and `rows` those of table `searches` without model, calibration and selector.
    """

    sets: Mapping[int, Candidate]
    losses: Mapping[int, float]
    rows: Sequence[Mapping[str, Any]]


def run(
    trials: Trials,
    units: Sequence[str],
    sizes: Sequence[int],
    options: Any,
    seen: np.ndarray,
    held_back: np.ndarray,
    lengths: np.ndarray,
) -> Result:
    """Search, run the rivals, and judge all sets on the samples held back.

    Parameters
    ----------
    units
        The units that may be removed.
    options
        A selector with a searching strategy.
    seen, held_back
        Numbers of the samples of the search, and of the samples on which the final sets are measured once.
    lengths
        Tokens of every sample.
    """

    def asking(strategy: str) -> Search:
        return Search(strategy, trials, seen, lengths)

    own, greedy, once, base = map(asking, (options.strategy, "iterative", "one_shot", BASE))
    sets = load(f"lamina.selection.strategies.{options.strategy}").find(own, units, sizes, options)
    ways = [(own, sets), (greedy, beam.within(greedy, units, sizes, 1)), (once, _one_shot(once, units, sizes))]
    base.best([Candidate()], 1, 0, WINNER)
    base.judge(Candidate(), None, 0, held_back)
    losses = {0: base.rows[0]["loss"]}
    for search, ends in ways:
        for size, end in ends.items():
            search.best([end], 1, size, WINNER)
            if search is own:
                losses[size] = own.rows[-1]["loss"]
    for search, ends in ways:
        for size, end in ends.items():
            search.judge(end, sets[size], size, held_back)
    rows = [row for search in (base, *(search for search, _ in ways)) for row in search.rows]
    return Result(sets, losses, [row | {"evaluation": number} for number, row in enumerate(rows)])


def _one_shot(search: Search, units: Sequence[str], sizes: Sequence[int]) -> dict[int, Candidate]:
    """For each size, the set of the units whose single removals lose least."""
    ranked = search.best([Candidate(frozenset({unit})) for unit in units], max(sizes), 1)
    return {size: Candidate(frozenset().union(*(one.removed for one in ranked[:size]))) for size in sizes}

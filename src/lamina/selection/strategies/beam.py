"""Beam search: the best sets of each size are kept, and all their extensions compared. Width 1 is greedy."""

from collections.abc import Sequence
from typing import Any

from lamina.engine.candidates import Candidate
from lamina.selection.trials import Search
from lamina.study.variant import DONOR


def find(search: Search, units: Sequence[str], sizes: Sequence[int], options: Any) -> dict[int, Candidate]:
    """The best set of each size that the beam has tried; `units` are the units that may be removed."""
    return within(search, units, sizes, options.width, options.donors)


def within(
    search: Search, units: Sequence[str], sizes: Sequence[int], width: int, donors: Sequence[str] = ()
) -> dict[int, Candidate]:
    """Does the same as `find`, with `width` sets kept. With donors, a set also competes with its own variants that have
    one more layer replaced."""
    kept, best = [Candidate()], {}
    for size in range(1, max(sizes) + 1):
        # A set of two is reached from either of its units.
        extended = dict.fromkeys(
            one.changed(unit) if donors else one.without(unit)
            for one in kept
            for unit in units
            if unit not in one.removed
        )
        kept = search.best(list(extended), width, size)
        if donors:
            swaps = [f"{unit}.{DONOR}{donor}" for unit in units for donor in donors]
            given = [one.changed(swap) for one in kept for swap in swaps if swap.split(".")[0] not in one.removed]
            kept = search.best(list(dict.fromkeys([*kept, *given])), width, size, "2")
        best[size] = kept[0]
    return {size: best[size] for size in sizes}

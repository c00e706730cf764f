"""Beam search: the best sets of each size are kept, and all their extensions compared. Width 1 is greedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.entry import Filled, option, seed_option
from lamina.config.metrics import MetricName
from lamina.config.selectors import Selector, donors_option, held_back_option, metric_option, repair_option
from lamina.engine.candidates import Candidate
from lamina.study.variant import DONOR

if TYPE_CHECKING:
    from lamina.selection.trials import Search


class Beam(Selector):
    """Keeps the best sets of each size and compares all their extensions; a plan need not contain the smaller one.

    Like `evolutionary` it is one job for all sizes of the studies. It compares sets by the mean loss behind the metric,
    on a seeded part of the calibration, and tells in table `searches` all that was tried, what it cost, and what the
    winner is worth on the samples held back, beside what greedy and one-shot removal reach with the same objective and
    samples. `repair` repairs what is compared, as for `iterative`. With `donors`, the kept sets of each size also
    compete with themselves with one layer more replaced; the rivals have none.
    """

    SEARCHES = True

    strategy: Literal["beam"] = "beam"
    metric: MetricName = metric_option(("accuracy", "output_kl"))
    width: int = option("Sets of each size that are kept; with 1 it is greedy.", 3, ge=1)
    held_back: float = held_back_option()
    seed: int = seed_option()
    repair: Filled | None = repair_option()
    donors: list[Filled] = donors_option()


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

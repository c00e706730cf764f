"""Budget `race`: a least relevant unit within `tolerance` of the true one, with `confidence`, from fewer samples.

Samples come in a seeded random order; all units still in the race see the same ones, so they are compared in pairs. A
unit leaves once a sequential test is sure that it is not better than the current leader by more than the tolerance. The
test (`betting`) may be looked at any time, so nothing is lost by stopping when it is sure.

How often is the answer wrong? Let b be the true minimum on the calibration. The chosen unit is more than the tolerance
worse than b only if b was sent off by a unit that is, and b meets at most U - 1 others. Each test therefore gets the
error α = (1 - confidence) / (k (k + 1) (U - 1)) at step k of a plan, and the errors of all steps of a plan of any
length add up to at most 1 - confidence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.search.betting import log_evidence
from lamina.search.losses import Ledger, best, loss_of
from lamina.sweep.engine import Session

# With fewer samples even a removal that ruins everything is not yet sure to have lost.
FIRST, GROWTH = 24, 5


def run(session: Session, candidates: Sequence[str], budget: dict[str, Any], chance: float) -> None:
    """Measure until one of `candidates` has sent all others off.

    The winner is then the unit with the smallest mean loss among those that saw the most samples.

    Parameters
    ----------
    budget
        `metric` (with a bounded loss), `score`, `seed`, `confidence`, `tolerance` (in the unit of the loss: a share of
        the samples for accuracy), and `step`, the place of this removal in its plan, from 1.
    chance
        Not used here; part of the face that budgets share.
    """
    loss = loss_of(budget["metric"], budget["score"])
    assert loss.largest is not None
    largest = loss.largest
    ledger = Ledger(session, candidates, loss, budget["seed"], FIRST, GROWTH)
    count, seen = ledger.count, ledger.seen
    step, others = budget["step"], max(1, len(candidates) - 1)
    needed = -np.log((1 - budget["confidence"]) / (step * (step + 1) * others))

    def beaten(unit: str, leader: str) -> bool:
        """Whether `leader` is surely at most the tolerance worse than `unit`, on the samples that both saw."""
        both = ledger.order[: min(seen[unit], seen[leader])]
        difference = np.clip(ledger.values[unit][both] - ledger.values[leader][both], -largest, largest)
        return log_evidence(difference, count, -largest, largest, -budget["tolerance"]) >= needed

    active, at, leader = list(candidates), 0, ""
    while True:
        if at < count:
            at = ledger.advance(active, count, current=True)
        # A leader that is nearly the best stays leader: whom it sent off need not be compared again.
        first = best(active, ledger)
        if leader not in active or ledger.mean(first) < ledger.mean(leader) - budget["tolerance"] / 2 or at == count:
            leader = first
        active = [unit for unit in active if unit == leader or (at < count and not beaten(unit, leader))]
        if len(active) > 1:
            continue
        # Who looks best in the end must have beaten everyone itself; those it has not come back and catch up.
        leader = best([unit for unit in candidates if seen[unit] == at], ledger)
        while back := [unit for unit in candidates if seen[unit] < at and not beaten(unit, leader)]:
            ledger.advance(back, at, current=False)
        active = [unit for unit in candidates if seen[unit] == at and (unit == leader or not beaten(unit, leader))]
        if len(active) == 1 or at == count:
            return

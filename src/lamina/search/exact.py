"""Budget `exact`: the same least relevant unit as a full sweep, without measuring every unit on every sample.

Losses are never below 0. So once one unit has been measured on all samples, every other one is out as soon as its
losses so far exceed that unit's total: even if all its remaining samples were best, it could not become the minimum. A
removal that errs on half of the samples is out after a fifth of them if the best one errs on a tenth.

That total is known at the end only. Until then a unit steps aside once its losses exceed what the best total may well
be; those for which that guess was too low come back when the true total is known. So all units that must see everything
share one pass, and the result never rests on a guess.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.search.evaluator import Evaluator
from lamina.search.losses import Ledger
from lamina.sweep.candidates import Candidate

# Samples between two looks, later an eighth of those seen: enough to fill batches.
FIRST, GROWTH = 32, 8
# A candidate's total must exceed the best one by more than what rounding could do.
ROUNDING = 1e-9


def run(
    evaluator: Evaluator, candidates: Sequence[Candidate], budget: dict[str, Any], chance: float
) -> Candidate | None:
    """Measure until only the best of `candidates` (and what ties with it) can be the minimum.

    Parameters
    ----------
    budget
        `seed`, which draws the order of the samples.
    chance
        Accuracy of guessing. A best candidate that is not above it settles nothing, since accuracy relevance does not
        tell removals at chance apart; everything is then measured on everything.

    Returns
    -------
    The best candidate. None where losses do not tell (several tie, or are at chance): those that may go have then been
    measured on everything, as in a full sweep, and the ranking of their scores decides as it does there.
    """
    ledger = Ledger(evaluator, candidates, budget["seed"], FIRST, GROWTH)
    count, at, active = ledger.count, 0, list(candidates)
    while at < count:
        at = ledger.advance(active, count)
        leader = ledger.best(active)
        bar = _expected_total(ledger.values[leader], count)
        active = [candidate for candidate in active if candidate == leader or ledger.total(candidate) <= bar]

    at_chance = evaluator.loss.metric == "accuracy" and 1 - ledger.mean(leader) <= chance
    while True:
        complete = [ledger.total(candidate) for candidate in candidates if ledger.seen[candidate] == count]
        least = np.inf if at_chance else min(complete) * (1 + ROUNDING) + ROUNDING
        possible = [candidate for candidate in candidates if ledger.total(candidate) <= least]
        back = [candidate for candidate in possible if ledger.seen[candidate] < count]
        if not back:
            return possible[0] if len(possible) == 1 and not at_chance else None
        ledger.advance(back, count)


def _expected_total(losses: np.ndarray, count: int) -> float:
    """Total over all samples that the seen ones make likely, plus two standard errors: coming back costs more."""
    values = losses[np.isfinite(losses)]
    if not len(values):
        return float("inf")
    error = values.std() * np.sqrt((1 - len(values) / count) / len(values))
    return float(count * (values.mean() + 2 * error))

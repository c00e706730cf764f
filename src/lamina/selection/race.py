"""Budget `race`: a least relevant unit within `tolerance` of the true one, with `confidence`, from fewer samples.

Samples come in a seeded random order. All units in the race see the same samples, so their losses are compared in
pairs. A unit leaves once a sequential test is sure that it is not better than the current leader by more than the
tolerance. The test (`log_evidence`) is valid at any time, so the race may stop as soon as the test is sure.

How often is the answer wrong? Let b be the true minimum on the calibration. The chosen unit can be worse than b by more
than the tolerance only if such a unit wrongly beat b, and b meets at most U - 1 others. Each test therefore gets the
error α = (1 - confidence) / (k (k + 1) (U - 1)) at step k of a plan, and the errors of all steps of a plan of any
length add up to at most 1 - confidence.

No test is needed if the leader's mean loss is within the tolerance: losses are never below 0, so no unit can be better
by more. If the leader has lost so little until now, it is measured alone on all samples to check this.

The order stays random: hard samples first, as in `exact`, would give no estimate of means.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.engine.candidates import Candidate
from lamina.selection.evaluator import Evaluator

# With fewer samples even a removal that ruins everything is not yet sure to have lost.
FIRST, GROWTH = 24, 5
# Samples at once of a leader that is measured alone.
PART = 64
# Shares of the capital put at stake, from cautious to bold. The gambler's capital is the mean over all of them, so one
# that suits the data makes up for the others at the price of log(8) in the evidence needed.
STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])


def evidence_needed(confidence: float, step: int, others: int) -> float:
    """Logarithm of the evidence that one test needs, as derived above. `step` counts from 1."""
    return float(-np.log((1 - confidence) / (step * (step + 1) * max(1, others))))


def _harmless(evaluator: Evaluator, leader: Candidate, numbers: np.ndarray, most: float) -> bool:
    """Whether the leader loses at most `most` on all samples; the measurement stops once it loses more."""
    lost = 0.0
    for start in range(0, len(numbers), PART):
        lost += float(evaluator.losses([leader], numbers[start : start + PART]).sum())
        if lost > most:
            return False
    return True


class Ledger:
    """Losses of candidates that see the samples in the same random order, each of them as many as it needs.

    `values[candidate]` has shape (samples,), NaN where it has not been measured. `seen[candidate]` counts its samples:
    it has seen the first so many of `order`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        candidates: Sequence[Candidate],
        seed: int,
        first: int,
        growth: int,
    ) -> None:
        """Between two comparisons there are `first` samples, later a share 1 / `growth` of the samples seen."""
        self.evaluator, self.count = evaluator, evaluator.count
        self.order = np.random.default_rng(seed).permutation(self.count)
        self.values = {candidate: np.full(self.count, np.nan) for candidate in candidates}
        self.seen = dict.fromkeys(candidates, 0)
        self._place = {candidate: number for number, candidate in enumerate(candidates)}
        self._first, self._growth = first, growth

    def advance(self, candidates: Sequence[Candidate], limit: int) -> int:
        """Measure the candidates that have seen the fewest samples, up to the next look, the next candidate's place or
        `limit`. Returns how many samples they have seen then.

        Candidates at the same place share a pass.
        """
        start = min(self.seen[candidate] for candidate in candidates)
        group = [candidate for candidate in candidates if self.seen[candidate] == start]
        ahead = [self.seen[candidate] for candidate in candidates if self.seen[candidate] > start]
        end = min([start + max(self._first, start // self._growth), limit, *ahead])
        numbers = self.order[start:end]
        for candidate, losses in zip(group, self.evaluator.losses(group, numbers), strict=True):
            self.values[candidate][numbers] = losses
        self.seen |= dict.fromkeys(group, end)
        return end

    def mean(self, candidate: Candidate) -> float:
        """Mean over the samples that the candidate saw."""
        return float(np.nanmean(self.values[candidate]))

    def best(self, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate with the smallest mean loss; the last of equal ones, because it lacks the deepest unit."""
        return min(
            candidates, key=lambda candidate: (self.mean(candidate), -self._place[candidate])
        )


def run(
    evaluator: Evaluator, candidates: Sequence[Candidate], budget: dict[str, Any], chance: float
) -> Candidate:
    """Measure until one of `candidates` has beaten all others, and return it.

    It need not have the smallest mean loss: a beaten candidate may have been lucky on fewer samples.

    evaluator: Its loss must have a bound.
    budget: `seed`, `confidence`, `tolerance` (in the unit of the loss: a share of the samples for accuracy), and
        `step`, the place of this removal in its plan, from 1.
    chance: Not used here; part of the interface that budgets share.
    """
    largest = evaluator.loss.metric.bound
    assert largest is not None
    ledger = Ledger(evaluator, candidates, budget["seed"], FIRST, GROWTH)
    count, seen = ledger.count, ledger.seen
    needed = evidence_needed(budget["confidence"], budget["step"], len(candidates) - 1)

    def beaten(candidate: Candidate, leader: Candidate) -> bool:
        """Whether `leader` is surely at most the tolerance worse than `candidate`, on the samples that both saw."""
        both = ledger.order[: min(seen[candidate], seen[leader])]
        # What is not a number is as bad as can be.
        its, leaders = (
            np.minimum(ledger.values[one][both], largest) for one in (candidate, leader)
        )
        return log_evidence(its - leaders, count, -largest, largest, -budget["tolerance"]) >= needed

    active, at, tried = list(candidates), 0, False
    leader: Candidate | None = None
    while True:
        if at < count:
            at = ledger.advance(active, count)
        # A leader that is nearly the best stays leader: whom it sent off need not be compared again.
        first = ledger.best(active)
        lead = budget["tolerance"] / 2
        if (
            leader is None
            or leader not in active
            or ledger.mean(first) < ledger.mean(leader) - lead
            or at == count
        ):
            leader = first
        if not tried and ledger.mean(leader) <= budget["tolerance"]:
            tried = True
            if _harmless(evaluator, leader, ledger.order, budget["tolerance"] * count):
                return leader
        active = [
            one for one in active if one == leader or (at < count and not beaten(one, leader))
        ]
        if len(active) > 1:
            continue
        # The last leader must have beaten every rival itself. A rival that it has not beaten comes back and catches up.
        leader = ledger.best([one for one in candidates if seen[one] == at])
        while back := [one for one in candidates if seen[one] < at and not beaten(one, leader)]:
            ledger.advance(back, at)
        there = [one for one in candidates if seen[one] == at]
        if at == count:
            return ledger.best(there)
        active = [one for one in there if one == leader or not beaten(one, leader)]
        if len(active) == 1:
            return leader


def log_evidence(values: np.ndarray, count: int, low: float, high: float, mean: float) -> float:
    """Logarithm of the evidence that the mean of a finite population is above `mean`.

    values: (n,) values drawn so far, in the order of a random permutation of the population's `count` values.
    low, high: Bounds of every value.

    The evidence is a capital process: if the population's mean is at most `mean`, the chance that it ever reaches 1/α,
    over all n, is at most α (Ville's inequality). The bets are those of Waudby-Smith and Ramdas, Estimating means of
    bounded random variables by betting (2024), section 5, for sampling without replacement, with a fixed mixture of
    stakes. The evidence is infinite if the values make the null hypothesis impossible.
    """
    share = (np.asarray(values, dtype=float) - low) / (high - low)
    null = (mean - low) / (high - low)
    n = len(share)
    before = np.concatenate([[0.0], np.cumsum(share)])
    # What the remaining values average to at most, if the null hypothesis holds.
    rest = (count * null - before[:n]) / (count - np.arange(n))
    left = count - n
    if count * null - before[n] < -1e-9 or (left == 0 and before[n] > count * null + 1e-9):
        return float("inf")
    rest = np.maximum(rest, 1e-12)
    # At a null mean of 1 or more nothing can speak against it; the bet is then not made.
    gain = np.where(rest >= 1, 0.0, share / rest - 1)
    capital = np.log1p(STAKES[:, None] * gain[None]).sum(axis=1)
    return float(np.logaddexp.reduce(capital) - np.log(len(STAKES)))

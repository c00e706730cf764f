"""Losses that compare candidates: one per sample, whose mean ranks candidates as a metric does; and what each has lost
so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lamina.config.metrics import METRICS
from lamina.sweep.candidates import Candidate

if TYPE_CHECKING:
    from lamina.search.evaluator import Evaluator


@dataclass(frozen=True)
class Loss:
    """Loss of a metric, at most `largest` (None if it has no bound), and never below 0 except for a signed metric.

    A loss that is not a number counts as infinite. The candidate with the smallest mean loss is the metric's best one.
    `field` is its column in table `sweeps`.
    """

    metric: str
    field: str
    largest: float | None


def loss_of(metric: str, score: str) -> Loss:
    """The loss behind a metric that is measured by removal; `score` is `acc` or `acc_norm`."""
    known = METRICS[metric]
    normalised = score == "acc_norm" and metric in ("accuracy", "expected_accuracy", "margin")
    field = f"{known.column}_norm" if normalised else known.column
    return Loss(metric, field, known.bound)


class Ledger:
    """The losses so far of the candidates of a budget. All candidates see the samples in the same random order.

    `values[candidate]` has shape (samples,), NaN where it has not been measured. `seen[candidate]` counts its samples:
    it has seen the first so many of `order`.
    """

    def __init__(
        self, evaluator: "Evaluator", candidates: Sequence[Candidate], seed: int, first: int, growth: int
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
        return min(candidates, key=lambda candidate: (self.mean(candidate), -self._place[candidate]))

"""What a budget compares units by: a loss per sample whose mean ranks the units as the metric does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lamina.sweep.engine import Session


@dataclass(frozen=True)
class Loss:
    """Loss of a metric: never below 0, and at most `largest` (None if it has no bound).

    The unit with the smallest mean loss is the metric's least relevant one. `field` is its column in table `sweeps`.
    """

    metric: str
    field: str
    largest: float | None


def loss_of(metric: str, score: str) -> Loss:
    """The loss behind a metric that is measured by removal; `score` is `acc` or `acc_norm`."""
    largest = {"accuracy": 1.0, "output_js": float(np.log(2)), "output_cosine": 2.0}
    field = {"accuracy": "correct_norm" if score == "acc_norm" else "correct", "perplexity": "nll"}
    return Loss(metric, field.get(metric, metric), largest.get(metric))


class Ledger:
    """What the units of a budget have lost so far, on samples that all of them see in the same random order.

    `values[unit]` has shape (samples,), NaN where the unit has not been measured. `seen[unit]` counts its samples: it
    has seen the first so many of `order`.
    """

    def __init__(self, session: Session, units: Sequence[str], loss: Loss, seed: int, first: int, growth: int) -> None:
        """Looks are `first` samples apart, later a share 1 / `growth` of those seen."""
        self.session, self.loss = session, loss
        self.count = len(session.scores.samples)
        self.order = np.random.default_rng(seed).permutation(self.count)
        self.values = {unit: np.full(self.count, np.nan) for unit in units}
        self.seen = dict.fromkeys(units, 0)
        self._first, self._growth = first, growth

    def advance(self, units: Sequence[str], limit: int, current: bool) -> int:
        """Measure the hindmost of `units` up to the next look, the next unit's place or `limit`; how far they now are.

        Units at the same place share a pass. What is not a number counts as infinitely bad.
        """
        start = min(self.seen[unit] for unit in units)
        group = [unit for unit in units if self.seen[unit] == start]
        ahead = [self.seen[unit] for unit in units if self.seen[unit] > start]
        end = min([start + max(self._first, start // self._growth), limit, *ahead])
        self.session.measure(self.order[start:end], group, current)
        scores = self.session.scores
        places = [scores.index[unit] for unit in group]
        for number in self.order[start:end]:
            if self.loss.metric == "accuracy":
                found = 1.0 - scores.correct(places, number, self.loss.field == "correct_norm")
            else:
                rows = [scores.sample(unit, number).get(self.loss.field) for unit in group]
                found = np.array([np.inf if value is None else value for value in rows])
            for unit, value in zip(group, found, strict=True):
                self.values[unit][number] = value
        self.seen |= dict.fromkeys(group, end)
        return end

    def total(self, unit: str) -> float:
        """Sum over the samples that the unit saw."""
        return float(np.nansum(self.values[unit]))

    def mean(self, unit: str) -> float:
        """Mean over the samples that the unit saw."""
        return float(np.nanmean(self.values[unit]))


def best(units: Sequence[str], ledger: Ledger) -> str:
    """The unit with the smallest mean loss; among equals the deeper one."""
    return min(units, key=lambda unit: (ledger.mean(unit), -int(unit.split(".")[0])))

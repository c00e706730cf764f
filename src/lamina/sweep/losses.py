"""What a budget compares units by: a loss per sample whose mean ranks the units as the metric does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lamina.sweep.scores import Scores


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
    """Losses seen so far: `values[unit]` has shape (samples,), NaN where the unit has not been measured."""

    def __init__(self, scores: Scores, loss: Loss) -> None:
        self.scores, self.loss = scores, loss
        self.values = {unit: np.full(len(scores.samples), np.nan) for unit in scores.units}

    def update(self, units: Sequence[str], samples: Iterable[int]) -> None:
        """Take over what the session has measured on these samples. What is not a number counts as infinitely bad."""
        places = [self.scores.index[unit] for unit in units]
        for number in samples:
            if self.loss.metric == "accuracy":
                found = 1.0 - self.scores.correct(places, number, self.loss.field == "correct_norm")
            else:
                rows = [self.scores.sample(unit, number).get(self.loss.field) for unit in units]
                found = np.array([np.inf if value is None else value for value in rows])
            for unit, value in zip(units, found, strict=True):
                self.values[unit][number] = value

    def total(self, unit: str) -> float:
        """Sum over the samples that the unit saw."""
        return float(np.nansum(self.values[unit]))

    def mean(self, unit: str) -> float:
        """Mean over the samples that the unit saw."""
        return float(np.nanmean(self.values[unit]))


def best(units: Sequence[str], ledger: Ledger) -> str:
    """The unit with the smallest mean loss; among equals the deeper one."""
    return min(units, key=lambda unit: (ledger.mean(unit), -int(unit.split(".")[0])))

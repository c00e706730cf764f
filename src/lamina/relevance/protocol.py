"""What a metric is: a class in a module of `lamina.relevance.metrics`. A new metric is a new class there, nothing else.

Its class attributes are literals, since the configuration reads them from the source and imports nothing of what
computes numbers. The default of every method is that of a metric whose score is the mean of one column of `sweeps`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from lamina.config.metrics import METRICS
from lamina.modules import load
from lamina.relevance.columns import Columns, Context, mean_skewness, ratio, ratio_errors
from lamina.relevance.statistics import Ends, interval, studentised_interval


class Metric:
    """One metric. Scores are high where a unit is relevant."""

    name: ClassVar[str]
    pass_: ClassVar[
        str
    ]  # the cheapest pass that measures it: `removal`, `stream`, `gradient`, `weights` or `fit`
    columns: ClassVar[
        tuple[str, ...]
    ]  # of table `sweeps`; the first one has a value wherever the metric was measured
    help: ClassVar[str]
    bound: ClassVar[float | None] = (
        None  # the largest loss of a sample, if any, which the test of `race` needs
    )
    signed: ClassVar[bool] = False  # a loss may be below 0, which `exact` does not allow
    adds: ClassVar[bool] = (
        True  # the mean of `loss` over samples ranks removals, which budgets and searches need
    )
    runs: ClassVar[bool] = False  # a whole run of layers has a value, which `block` needs
    halves: ClassVar[bool] = True  # half a layer has a value
    remedy: ClassVar[str] = (
        ""  # what to write where it is undefined; `{calibration}` is the calibration's name
    )

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray | None]:
        """Numerators and denominators of a ratio of sums over samples, (units, samples) each; None for a mean."""
        return columns.values[self.columns[0]][1:], None

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """The scores, (draws, units). Each row of `weights`, (draws, samples), weighs the samples and sums to 1."""
        return ratio(weights, *self.terms(columns, context))

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> Ends:
        """Ends of the 95 % intervals, (units,), from `scores` by bootstrap `weights`; the first row is the estimate."""
        if type(self).score is Metric.score:
            terms = self.terms(columns, context)
            return studentised_interval(
                scores, ratio_errors(weights, *terms), mean_skewness(*terms), columns.seen[1:]
            )
        return interval(np.where(np.isfinite(scores[1:]), scores[1:], np.nan), columns.n_samples)

    def undefined(self, columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
        """Why there is no score, and keys that rank the units instead (None if nothing can), (units, keys), least
        relevant first. None if the metric is defined.
        """
        return None

    def not_finite(self, columns: Columns) -> np.ndarray:
        """Number of samples on which each unit's removal gave no numbers, (units,)."""
        return np.asarray(np.isinf(columns.values[self.columns[0]][1:]).sum(axis=1))

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        """Losses of candidates on samples from columns of `sweeps`, (candidates, samples) each, by `acc` or `acc_norm`.

        The candidate with the smallest mean loss is the metric's best one.
        """
        return values[self.columns[0]]

    def difficulty(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray | None:
        """The larger, the larger a removal's loss on a sample is likely to be, from the columns of the model before the
        removal, (1, samples) each. None where the losses of a good candidate tell that better.
        """
        return None

    def at_chance(self, loss: float, chance: float) -> bool:
        """Whether this mean loss is that of guessing, so that losses do not rank removals."""
        return False

    def accuracy(self, loss: float) -> float | None:
        """The accuracy behind a mean loss, for metrics that count right answers."""
        return None


def metric(name: str) -> Metric:
    found: Any = next(
        kind
        for kind in vars(load(METRICS[name].module)).values()
        if getattr(kind, "name", None) == name
    )
    own: Metric = found()
    return own

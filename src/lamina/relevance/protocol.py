"""What a metric is: a class in a module of `lamina.relevance.metrics`.

A new metric is a new class there, nothing else.

Its class attributes are literals, because the configuration reads them from the source without
importing code that computes. By default, every method treats the score as the mean of one column of
`sweeps`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from lamina.options.metrics import METRICS
from lamina.relevance.columns import (
    Columns,
    Context,
    mean_skewness,
    weighted_ratio,
    weighted_ratio_errors,
)
from lamina.relevance.statistics import IntervalEnds, percentile_interval, studentised_interval


class Metric:
    """One metric. A high score means that a unit is relevant."""

    name: ClassVar[str]

    pass_: ClassVar[str]
    """The cheapest pass that measures it: `removal`, `stream`, `gradient`, `weights` or
    `generate`.
    """

    columns: ClassVar[tuple[str, ...]]
    """Columns of table `sweeps` that it reads; the first one has a value wherever the metric was
    measured.
    """

    help: ClassVar[str]

    runs: ClassVar[bool] = False
    """Whether a whole run of layers has a value. Strategy `block` needs this."""

    remedy: ClassVar[str] = ""
    """What to write in the configuration if the metric is undefined; `{calibration}` is the
    calibration's name.
    """

    def terms(self, columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray | None]:
        """Numerators and denominators of a ratio of sums over samples, (units, samples) each.

        None for a mean.
        """
        return columns.values[self.columns[0]][1:], None

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """The scores, (draws, units).

        Each row of `weights`, (draws, samples), weighs the samples and sums to 1.
        """
        numerators, denominators = self.terms(columns, context)
        return weighted_ratio(weights, numerators, denominators)

    def interval(
        self, columns: Columns, context: Context, scores: np.ndarray, weights: np.ndarray
    ) -> IntervalEnds:
        """Ends of the 95 % intervals, (units,) each, from the bootstrap; NaN where there is none.

        scores: Those under the bootstrap `weights`, (1 + draws, units); the first row is the
        estimate.
        """
        has_own_score = type(self).score is not Metric.score
        if has_own_score:
            finite_draws = np.where(np.isfinite(scores[1:]), scores[1:], np.nan)
            return percentile_interval(finite_draws, columns.n_samples)
        numerators, denominators = self.terms(columns, context)
        return studentised_interval(
            scores,
            weighted_ratio_errors(weights, numerators, denominators),
            mean_skewness(numerators, denominators),
            columns.seen[1:],
        )

    def undefined(self, columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
        """None if the metric is defined; else the reason, and keys that rank the units instead.

        The keys are (units, keys), the smallest being the least relevant; None if nothing can rank
        the units.
        """
        return None

    def not_finite(self, columns: Columns) -> np.ndarray:
        """Number of samples on which each unit's removal gave no numbers, (units,)."""
        of_units = columns.values[self.columns[0]][1:]
        return np.asarray(np.isinf(of_units).sum(axis=1))

    def loss(self, values: Mapping[str, np.ndarray], score: str) -> np.ndarray:
        """Losses of candidates on samples, from columns of `sweeps`, all (candidates, samples).

        The metric prefers the candidate with the smallest mean loss. `score` is `acc` or
        `acc_norm`.
        """
        return values[self.columns[0]]

    def accuracy(self, loss: float) -> float | None:
        """The accuracy that a mean loss stands for, for metrics that count right answers."""
        return None


def metric_named(name: str) -> Metric:
    """An instance of the metric with this name."""
    module = import_module(METRICS[name].module)
    metric_class: Any = next(
        value for value in vars(module).values() if getattr(value, "name", None) == name
    )
    metric_instance: Metric = metric_class()
    return metric_instance

"""Losses that compare candidates: one per sample, whose mean ranks candidates as a metric does."""

from dataclasses import dataclass

from lamina.config.metrics import METRICS


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
    normalised = score == "acc_norm" and metric in ("accuracy", "margin")
    field = f"{known.column}_norm" if normalised else known.column
    return Loss(metric, field, known.bound)

"""The ranking of a sweep's units by one metric, and the rows of table `relevance` for several metrics."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.config.metrics import METRICS
from lamina.relevance import protocol
from lamina.relevance.columns import ANSWERS, Columns, Context, from_table
from lamina.relevance.statistics import bootstrap_weights


@dataclass(frozen=True)
class Ranking:
    """Units by one metric, in the order of `columns.units`."""

    draws: (
        np.ndarray
    )  # (1 + draws, units), whose first row is the estimate; NaN where the metric is undefined
    # (units,), where 1 is the least relevant unit, which is removed first, and the deeper one of equals. Units that
    # left the sweep early come after those that saw more samples; scores that are not finite come last. None if nothing
    # can be ranked.
    ranks: list[int] | None
    reason: str | None  # why the metric is undefined


def ranking(
    columns: Columns, metric: str, context: Context, weights: np.ndarray | None = None
) -> Ranking:
    """The units ranked by `metric`. `weights` are bootstrap draws; the default is the plain mean alone."""
    if weights is None:
        weights = np.full((1, columns.n_samples), 1 / columns.n_samples)
    own = protocol.metric(metric)
    why, keys, draws = None, None, None
    if (undefined := own.undefined(columns, context)) is not None:
        (why, keys), draws = undefined, np.full((len(weights), len(columns.units)), np.nan)
        if keys is None:
            return Ranking(draws, None, why)
    else:
        draws = own.score(columns, weights, context)
        # Equal scores must compare equal however their sums were rounded.
        keys = np.where(np.isfinite(draws[0]), draws[0].round(12), np.inf)[:, None]
    layers = [int(unit.split(".")[0]) for unit in columns.units]
    order = sorted(range(len(layers)), key=lambda i: (-columns.seen[i + 1], *keys[i], -layers[i]))
    ranks = {index: place + 1 for place, index in enumerate(order)}
    return Ranking(draws, [ranks[index] for index in range(len(layers))], why)


def was_measured(columns: Columns, metric: str, context: Context) -> bool:
    """Whether the sweep holds the numbers of a metric, or the reason why it is undefined."""
    own = protocol.metric(metric)
    return columns.has(own.columns[0]) or own.undefined(columns, context) is not None


def relevance(
    sweep: pa.Table, metrics: Iterable[str], context: Context, seed: int
) -> list[dict[str, Any]]:
    """Rows of table `relevance` without its keys, for every one of `metrics` that the sweep measured.

    A score that is not finite is null; its reason says on how many samples the removal gave no numbers. The score of a
    unit that saw only the hardest samples is null too; `at_least` is its lower bound.
    """
    columns = from_table(sweep)
    weights = bootstrap_weights(columns.n_samples, seed)
    return [
        row
        for metric in metrics
        if was_measured(columns, metric, context)
        for row in _rows(
            metric, columns, context, ranking(columns, metric, context, weights), weights
        )
    ]


def bounds(columns: Columns, metric: str, context: Context) -> np.ndarray:
    """A lower bound of each unit's score, (units,): the score if nothing were lost on the samples that it did not see.

    NaN for a metric without losses that add up, or whose losses may be below 0.
    """
    if METRICS[metric].signed or not METRICS[metric].adds:
        return np.full(len(columns.units), np.nan)
    values = {}
    for name, column in columns.values.items():
        answer = name in ANSWERS
        best = (
            column[:1]
            if name == "n_tokens"
            else np.where(np.isnan(column[:1]), np.nan, 1.0)
            if answer
            else 0.0
        )
        values[name] = np.where(np.isnan(column), best, column)
    return ranking(replace(columns, values=values), metric, context).draws[0]


def _rows(
    metric: str, columns: Columns, context: Context, order: Ranking, weights: np.ndarray
) -> list[dict[str, Any]]:
    early = (
        columns.seen[1:] < columns.n_samples
        if context.hard_first
        else np.zeros(len(columns.units), dtype=bool)
    )
    point = np.where(early, np.nan, order.draws[0])
    least = (
        np.where(early, bounds(columns, metric, context), np.nan) if order.reason is None else point
    )
    low, high = point, point
    own = protocol.metric(metric)
    if order.reason is None and own.pass_ != "weights":
        with np.errstate(all="ignore"):
            low, high = own.interval(columns, context, order.draws, weights)
            low, high = np.minimum(low, point), np.maximum(high, point)
    not_finite = own.not_finite(columns)
    rows = []
    for i, unit in enumerate(columns.units):
        finite, seen = bool(np.isfinite(point[i])), int(columns.seen[i + 1])
        lost = (
            f"{not_finite[i]} of {seen} samples not finite"
            if not finite and not_finite[i]
            else None
        )
        left = (
            f"left early, after {seen} of the hardest samples, which tell no mean"
            if early[i]
            else None
        )
        rows.append(
            {
                "metric": metric,
                "unit": unit,
                "layer": int(unit.split(".")[0]),
                "component": unit.partition(".")[2] or "layer",
                "score": float(point[i]) if finite else None,
                "ci_low": float(low[i]) if finite and np.isfinite(low[i]) else None,
                "ci_high": float(high[i]) if finite and np.isfinite(high[i]) else None,
                "at_least": float(least[i]) if np.isfinite(least[i]) else None,
                "n_samples": 0 if own.pass_ == "weights" else seen,
                "n_not_finite": int(not_finite[i]),
                "rank": order.ranks[i] if order.ranks else None,
                "reason": order.reason or lost or left,
            }
        )
    return rows

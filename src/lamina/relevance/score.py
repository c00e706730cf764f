"""The ranking of a sweep's units by one metric, and the rows of table `relevance` for several metrics.

A metric is the module of its name. Its score is the mean of its column over samples, unless the module has another
`score(columns, weights, context)`, or the `terms(columns, context)` of a ratio of sums. The module may have
`undefined`, which says when the metric has no score and what ranks the units instead, and a `REMEDY` for plans that end
there. It may have its own `interval(columns, context)`, for metrics that count answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.config.metrics import METRICS
from lamina.modules import load
from lamina.relevance.columns import Columns, Context, from_table, ratio, ratio_errors
from lamina.relevance.statistics import bootstrap_weights, interval, studentised


@dataclass(frozen=True)
class Ranking:
    """Units by one metric, in the order of `columns.units`.

    Attributes
    ----------
    draws : (1 + draws, units), whose first row is the estimate; NaN where the metric is undefined.
    ranks : (units,), where 1 is the least relevant unit, which is removed first, and the deeper one of equals. Units
        that left the sweep early come after those that saw more samples; scores that are not finite come last. None if
        nothing can be ranked.
    reason : why the metric is undefined.
    """

    draws: np.ndarray
    ranks: list[int] | None
    reason: str | None


def ranking(columns: Columns, metric: str, context: Context, weights: np.ndarray | None = None) -> Ranking:
    """The units ranked by `metric`. `weights` are bootstrap draws; the default is the plain mean alone."""
    if weights is None:
        weights = np.full((1, columns.n_samples), 1 / columns.n_samples)
    module = load(f"lamina.relevance.metrics.{metric}")
    why, keys, draws = None, None, None
    if (undefined := _undefined(columns, metric, context)) is not None:
        (why, keys), draws = undefined, np.full((len(weights), len(columns.units)), np.nan)
        if keys is None:
            return Ranking(draws, None, why)
    else:
        if hasattr(module, "score"):
            draws = module.score(columns, weights, context)
        else:
            draws = ratio(weights, *_terms(columns, metric, context))
        # Equal scores must compare equal however their sums were rounded.
        keys = np.where(np.isfinite(draws[0]), draws[0].round(12), np.inf)[:, None]
    layers = [int(unit.split(".")[0]) for unit in columns.units]
    order = sorted(range(len(layers)), key=lambda i: (-columns.seen[i + 1], *keys[i], -layers[i]))
    ranks = {index: place + 1 for place, index in enumerate(order)}
    return Ranking(draws, [ranks[index] for index in range(len(layers))], why)


def _terms(columns: Columns, metric: str, context: Context) -> tuple[np.ndarray, np.ndarray | None]:
    module = load(f"lamina.relevance.metrics.{metric}")
    if hasattr(module, "terms"):
        terms: tuple[np.ndarray, np.ndarray | None] = module.terms(columns, context)
        return terms
    return columns.values[METRICS[metric].column][1:], None


def was_measured(columns: Columns, metric: str, context: Context) -> bool:
    """Whether the sweep holds the numbers of a metric, or the reason why it is undefined."""
    return columns.has(METRICS[metric].column) or _undefined(columns, metric, context) is not None


def _undefined(columns: Columns, metric: str, context: Context) -> tuple[str, np.ndarray | None] | None:
    module = load(f"lamina.relevance.metrics.{metric}")
    reason: tuple[str, np.ndarray | None] | None = getattr(module, "undefined", lambda *_: None)(columns, context)
    return reason


def relevance(sweep: pa.Table, metrics: Iterable[str], context: Context, seed: int) -> list[dict[str, Any]]:
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
        for row in _rows(metric, columns, context, ranking(columns, metric, context, weights), weights)
    ]


def bounds(columns: Columns, metric: str, context: Context) -> np.ndarray:
    """A lower bound of each unit's score, (units,): the score if nothing were lost on the samples that it did not see.

    NaN for a metric whose losses may be below 0.
    """
    if METRICS[metric].signed:
        return np.full(len(columns.units), np.nan)
    values = {}
    for name, column in columns.values.items():
        answer = name in ("correct", "correct_norm")
        best = column[:1] if name == "n_tokens" else np.where(np.isnan(column[:1]), np.nan, 1.0) if answer else 0.0
        values[name] = np.where(np.isnan(column), best, column)
    return ranking(replace(columns, values=values), metric, context).draws[0]


def _interval(
    metric: str, columns: Columns, context: Context, ranked: Ranking, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 95 % intervals, (units,): by the metric's own `interval` if it has one, else by a bootstrap."""
    module = load(f"lamina.relevance.metrics.{metric}")
    if hasattr(module, "score"):
        draws = np.where(np.isfinite(ranked.draws[1:]), ranked.draws[1:], np.nan)
        low, high = interval(draws, columns.n_samples)
    else:
        errors = ratio_errors(weights, *_terms(columns, metric, context))
        low, high = studentised(ranked.draws, errors, columns.seen[1:])
    if hasattr(module, "interval"):
        own = module.interval(columns, context)
        low, high = (np.where(np.isnan(mine), other, mine) for mine, other in zip(own, (low, high), strict=True))
    return low, high


def _rows(metric: str, columns: Columns, context: Context, order: Ranking, weights: np.ndarray) -> list[dict[str, Any]]:
    """One row per unit."""
    early = columns.seen[1:] < columns.n_samples if context.hard_first else np.zeros(len(columns.units), dtype=bool)
    point = np.where(early, np.nan, order.draws[0])
    least = np.where(early, bounds(columns, metric, context), np.nan) if order.reason is None else point
    low, high = point, point
    if order.reason is None and METRICS[metric].pass_ != "weights":
        with np.errstate(all="ignore"):
            low, high = _interval(metric, columns, context, order, weights)
            low, high = np.minimum(low, point), np.maximum(high, point)
    # An answer without finite scores is wrong, which does not show in its column; it does in the loss.
    column = "nll" if metric == "accuracy" else METRICS[metric].column
    not_finite = np.isinf(columns.values[column][1:]).sum(axis=1)
    rows = []
    for i, unit in enumerate(columns.units):
        finite, seen = bool(np.isfinite(point[i])), int(columns.seen[i + 1])
        lost = f"{not_finite[i]} of {seen} samples not finite" if not finite and not_finite[i] else None
        left = f"left early, after {seen} of the hardest samples, which tell no mean" if early[i] else None
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
                "n_samples": 0 if METRICS[metric].pass_ == "weights" else seen,
                "n_not_finite": int(not_finite[i]),
                "rank": order.ranks[i] if order.ranks else None,
                "reason": order.reason or lost or left,
            }
        )
    return rows

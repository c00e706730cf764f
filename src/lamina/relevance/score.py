"""All metrics that a sweep allows, with intervals and ranks: the rows of table `relevance`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.relevance import accuracy, output, stream, weights
from lamina.relevance.columns import Columns, from_table
from lamina.relevance.statistics import bootstrap_weights, interval

Metric = Callable[[Columns, np.ndarray], np.ndarray]

# The sweep column that a metric needs, and its function.
METRICS: dict[str, tuple[str, Metric]] = {
    "perplexity": ("nll", output.perplexity),
    "output_cosine": ("output_cosine", partial(output.distance, name="output_cosine")),
    "output_norm": ("output_norm", partial(output.distance, name="output_norm")),
    "output_js": ("output_js", partial(output.distance, name="output_js")),
    "output_kl": ("output_kl", partial(output.distance, name="output_kl")),
    "cosine": ("cosine", stream.cosine),
    "angular": ("angular_last", stream.angular),
    "taylor": ("taylor", weights.taylor),
    "magnitude": ("magnitude", weights.magnitude),
}


def relevance(sweep: pa.Table, chance: float, score: str, removed: int, seed: int) -> list[dict[str, Any]]:
    """Rows of table `relevance` without its keys, for every metric whose pass was run.

    `rank` 1 is the least relevant unit, the first to go; among equals the deeper one. Units that left the sweep early
    come after those that saw more samples. Accuracy at chance gives no score but a reason; once units are removed the
    ranking goes on by raw accuracy, then by loss.
    """
    columns = from_table(sweep)
    draws = bootstrap_weights(columns.n_samples, seed)
    rows: list[dict[str, Any]] = []
    if columns.has("correct"):
        rows += _accuracy(columns, draws, chance, score, removed)
    for name, (column, metric) in METRICS.items():
        if columns.has(column):
            rows += _rows(name, columns, metric(columns, draws))
    return rows


def _accuracy(columns: Columns, draws: np.ndarray, chance: float, score: str, removed: int) -> list[dict[str, Any]]:
    reason = accuracy.undefined(columns, chance, score)
    if reason is None:
        return _widened(
            _rows("accuracy", columns, accuracy.score(columns, draws, chance, score)), columns, chance, score
        )
    empty = np.full((2, len(columns.units)), np.nan)
    if removed == 0:
        return _rows("accuracy", columns, empty, reason=reason, ranked=False)
    right = np.nanmean(accuracy.hits(columns, score), axis=1)
    loss = np.nanmean(columns.values["nll"], axis=1)
    # Least relevant: what leaves the most right answers, then the lowest loss.
    keys: list[tuple[float, ...]] = list(zip(-right[1:], loss[1:], strict=True))
    return _rows("accuracy", columns, empty, reason=f"{reason}; ranked by raw accuracy, then by loss", keys=keys)


def _widened(rows: list[dict[str, Any]], columns: Columns, chance: float, score: str) -> list[dict[str, Any]]:
    """Intervals of units whose removal changed no answer, by the rule of three: a bootstrap gives them no width.

    If none of n samples changed, the share that would change is at most 3 / n with 95 % confidence.
    """
    above = float(np.nanmean(accuracy.hits(columns, score)[0])) - chance
    for row in rows:
        if row["score"] is not None and row["ci_low"] == row["ci_high"] and above > 0:
            half = 3 / row["n_samples"] / above
            row |= {"ci_low": row["score"] - half, "ci_high": row["score"] + half}
    return rows


def _rows(
    metric: str,
    columns: Columns,
    draws: np.ndarray,
    reason: str | None = None,
    ranked: bool = True,
    keys: list[tuple[float, ...]] | None = None,
) -> list[dict[str, Any]]:
    """One row per unit from (1 + draws, units); the first draw is the estimate."""
    point = draws[0]
    with np.errstate(all="ignore"):
        low, high = interval(np.where(np.isfinite(draws[1:]), draws[1:], np.nan)) if reason is None else (point, point)
    layers = [int(unit.split(".")[0]) for unit in columns.units]
    # Equal scores must compare equal however their sums were rounded; what is not a number goes last.
    values = keys or [(round(value, 12) if np.isfinite(value) else np.inf,) for value in point]
    order = sorted(range(len(point)), key=lambda i: (-columns.seen[i + 1], values[i], -layers[i]))
    rank = {index: place + 1 for place, index in enumerate(order)}
    return [
        {
            "metric": metric,
            "unit": unit,
            "layer": layers[i],
            "component": unit.partition(".")[2] or "layer",
            "score": _number(point[i]),
            "ci_low": _number(low[i]),
            "ci_high": _number(high[i]),
            "n_samples": 0 if metric == "magnitude" else int(columns.seen[i + 1]),
            "rank": rank[i] if ranked else None,
            "reason": reason,
        }
        for i, unit in enumerate(columns.units)
    ]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

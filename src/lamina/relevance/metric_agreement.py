"""How two metrics agree over the layers of a model and its tasks, with intervals [arXiv 2605.14075, §4, C.2, C.3].

The first and last two layers of eight or more are left out, as in the paper: every metric finds them relevant, and they
alone would make a correlation.

Correlations and variances are those of the true scores, of endlessly many samples: what the noise of these samples does
to them is taken off, as a paired bootstrap over samples tells it, in which each draw scores both metrics on the same
samples of every task (`true_scores`). So they are larger than the plain correlation of the measured scores.

Shares of misranked units need another one. What noise does to an order it does twice to that of a bootstrap draw, so
that drawn shares lie too high. Instead, at once for all pairs of units and tasks and both metrics, we ask which scores
differ for sure. This bounds every unit's places, and the places bound the shares [Mogstad, Romano, Shaikh and Wilhelm,
Inference for Ranks, 2024]. They hold the true shares with at least 95 %, and always the estimates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import rankdata, wilcoxon

from lamina.config.metrics import METRICS
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import (
    Interval,
    reliability,
    true_correlation,
    true_variance_ratio,
)

EDGE = 2  # layers left out at either end, if as many as these remain
BADLY = 0.25  # a unit is badly misranked if its two places are further apart than this share of the units
TINY = 1e-12  # differences that rounding could make
KINDS = {
    "layer": r"^\d+$",
    "attention": "attention$",
    "mlp": "mlp$",
}  # units of a kind, by their names


@dataclass(frozen=True)
class Agreement:
    """Agreement of two metrics over some tasks; intervals are (statistic, low, high)."""

    n_units: int
    pearson: (
        Interval | None
    )  # of the true scores over all units and tasks; None where all scores of a metric are equal
    spearman: Interval | None  # likewise
    misranked: Interval  # share of units in another place by the second metric; low is what is sure, high what may be
    badly: Interval  # the same of places that are more than `BADLY` away
    # Mean over units of the variance of true scores across tasks, that of the first metric divided by that of the
    # second; scores are standardised over all units and tasks of a metric. None for one task, or without variance.
    variance_ratio: Interval | None
    p_value: (
        float | None
    )  # two-sided Wilcoxon signed-rank test of these variances, unit by unit; None for one task


def compare(first: Sequence[np.ndarray], second: Sequence[np.ndarray], n_samples: int) -> Agreement:
    """The agreement of two metrics. Each is one array per task, (1 + draws, units), whose first row is the estimate.

    `n_samples` is the number of samples of the task with the fewest.
    """
    one, other = np.stack(first), np.stack(second)  # (tasks, 1 + draws, units)
    pooled = [np.moveaxis(scores, 0, 1).reshape(scores.shape[1], -1) for scores in (one, other)]
    # Among equals the deeper one is less relevant, as in every ranking.
    points = [scores[:, 0, ::-1].round(12) for scores in (one, other)]
    places = [rankdata(point, "ordinal", axis=-1)[:, ::-1] - 1 for point in points]
    apart = np.abs(places[0] - places[1])
    least, most, crossed = distances([one, other])
    ratio, p_value = None, None
    if len(one) > 1:
        ratio, *spread = true_variance_ratio(one, other, n_samples)
        # scipy warns where two metrics vary alike to the last digit, and then says NaN.
        if (abs(spread[0] - spread[1]) > TINY).any():
            p_value = float(wilcoxon(*spread).pvalue)

    def share(limit: float) -> Interval:
        surely = (least > limit).sum(axis=1)
        if not limit:
            surely = np.maximum(surely, crossed)
        return (
            float((apart > limit).mean()),
            float(surely.sum() / apart.size),
            float((most > limit).mean()),
        )

    return Agreement(
        one.shape[-1],
        true_correlation(pooled[0], pooled[1], n_samples),
        true_correlation(pooled[0], pooled[1], n_samples, ranked=True),
        share(0),
        share(BADLY * one.shape[-1]),
        ratio,
        p_value,
    )


def distances(metrics: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least and largest distance of a unit's true places by two metrics, (tasks, units) each, and the least number of
    units with two different places, (tasks,).

    `metrics` are scores of shape (tasks, 1 + draws, units). The greatest distance of any difference from its estimate,
    in standard errors, has a 95 % quantile over the draws. The order of a pair of units is sure if its difference is
    further from 0 than this quantile. If the metrics surely put two units in opposite orders, at least one of them has
    two different places. So the number of such units is at least the least number that covers all these pairs, which is
    at least half of a matching of the doubled pairs.
    """
    tasks, draws, units = metrics[0].shape
    errors = np.empty((len(metrics), tasks, units, units))
    furthest = np.zeros(draws - 1)
    # Task by task: the differences of all draws of all tasks would take gigabytes.
    for number, task in np.ndindex(len(metrics), tasks):
        gap = metrics[number][task][:, :, None] - metrics[number][task][:, None, :]
        error = errors[number, task] = gap[1:].std(axis=0)
        off = abs(gap[1:] - gap[0]) / np.where(
            error > TINY, error, np.inf
        )  # a difference without error is never off
        furthest = np.maximum(furthest, off.max(axis=(1, 2)))
    most = np.quantile(furthest, 0.95)
    after, others_after = (
        scores[:, 0, :, None] - scores[:, 0, None, :] > np.maximum(most * error, TINY)
        for scores, error in zip(metrics, errors, strict=True)
    )
    opposite = after & others_after.swapaxes(1, 2)
    crossed = [
        (maximum_bipartite_matching(csr_array(both | both.T)) >= 0).sum() for both in opposite
    ]
    (low, high), (other_low, other_high) = (
        (sure.sum(axis=2), sure.shape[1] - 1 - sure.sum(axis=1)) for sure in (after, others_after)
    )
    least = np.maximum(0, np.maximum(low - other_high, other_low - high))
    return least, np.maximum(high - other_low, other_high - low), -(-np.array(crossed) // 2)


@lru_cache(maxsize=1)
def _weights(samples: int) -> np.ndarray:
    return bootstrap_weights(samples, 0)


def draws_of(
    sweeps: pa.Table, metric: str, context: Context, samples: int
) -> tuple[list[str], np.ndarray] | None:
    """Units and their scores, (1 + draws, units), from the sweeps of one unpruned model and calibration.

    Several passes may have rows; the rows with values of the metric count. None if the metric was not measured, is
    undefined, or is not finite.
    """
    column = sweeps[METRICS[metric].columns[0]]
    # A calibration that only repairs read was never swept, and has no rows at all.
    if column.null_count == len(column):
        return None
    columns = from_table(
        sweeps.filter(pc.or_(pc.is_valid(column), pc.equal(sweeps["unit"], "none")))
    )
    if not columns.units:
        return None
    edge = EDGE if len(columns.units) >= 4 * EDGE else 0
    keep = range(edge, len(columns.units) - edge)
    ranked = ranking(columns, metric, context, _weights(samples)[:, : columns.n_samples])
    scores = ranked.draws[:, keep]
    return ([columns.units[i] for i in keep], scores) if np.isfinite(scores).all() else None


def comparisons(
    calibrations: Sequence[Mapping[str, Any]],
    sweeps: pa.Table | dataset.Dataset,
    first: str,
    others: Sequence[str],
) -> Iterator[tuple[str, str, str, list[str], Agreement]]:
    """(model, kind of unit, other metric, calibrations, agreement) of every model and kind on which `first` and another
    metric were measured and distinguish units.

    `calibrations` are the rows of that table; a data set of sweeps is read calibration by calibration.
    """
    counts = {(row["model"], row["calibration"]): row["n_samples"] for row in calibrations}
    # By kind of unit and other metric the draws of both, by calibration.
    draws: dict[tuple[str, str, str], dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for row, kind, table in base_sweeps(calibrations, sweeps):
        context = Context.of(row)
        one = draws_of(table, first, context, row["n_samples"])
        for metric in others if one else ():
            other = draws_of(table, metric, context, row["n_samples"])
            if one and other and one[0] == other[0]:
                draws.setdefault((row["model"], kind, metric), {})[row["calibration"]] = (
                    one[1],
                    other[1],
                )
    order = {kind: place for place, kind in enumerate(KINDS)}
    for model, kind, metric in sorted(
        draws, key=lambda key: (key[0], order[key[1]], others.index(key[2]))
    ):
        pairs = draws[model, kind, metric]
        least = min(counts[model, name] for name in pairs)
        agreement = compare(
            [one for one, _ in pairs.values()], [other for _, other in pairs.values()], least
        )
        if agreement.pearson:
            yield model, kind, metric, list(pairs), agreement


def reliabilities(
    calibrations: Sequence[Mapping[str, Any]],
    sweeps: pa.Table | dataset.Dataset,
    metrics: Sequence[str],
) -> Iterator[tuple[Mapping[str, Any], str, str, int, Interval]]:
    """(row of a calibration, kind of unit, metric, number of units, reliability) of every measured metric."""
    for row, kind, table in base_sweeps(calibrations, sweeps):
        for metric in metrics:
            measured = draws_of(table, metric, Context.of(row), row["n_samples"])
            if measured and (value := reliability(measured[1], row["n_samples"])):
                yield row, kind, metric, len(measured[0]), value


def base_sweeps(
    calibrations: Sequence[Mapping[str, Any]], sweeps: pa.Table | dataset.Dataset
) -> Iterator[tuple[Mapping[str, Any], str, pa.Table]]:
    """(row of a calibration, kind of unit, its rows of `sweeps`) of unpruned models, read one by one."""
    source = dataset.dataset(sweeps) if isinstance(sweeps, pa.Table) else sweeps
    base = (dataset.field("selector") == "base") & (dataset.field("removed") == 0)
    for row in calibrations:
        of_it = (dataset.field("model") == row["model"]) & (
            dataset.field("calibration") == row["calibration"]
        )
        swept = source.to_table(filter=base & of_it)
        for kind, pattern in KINDS.items():
            units = pc.or_(
                pc.match_substring_regex(swept["unit"], pattern), pc.equal(swept["unit"], "none")
            )
            yield row, kind, swept.filter(units)

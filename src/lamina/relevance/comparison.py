"""How two metrics agree over the layers of a model and its tasks, with intervals [arXiv 2605.14075, §4, C.2, C.3].

    python -m lamina.relevance.comparison results/tables accuracy cosine

prints one block per model and kind of unit, from tables `sweeps` and `calibrations`. The first and last two layers of
eight or more are left out, as in the paper: nobody doubts them, and a correlation would be theirs. Intervals are 95 %
of a paired bootstrap over samples: in each draw both metrics are scored on the same samples of every task.

Shares of misranked units need another one. What noise does to an order it does twice to that of a bootstrap draw, so
that drawn shares lie too high. Instead, at once for all pairs of units and tasks and both metrics, we ask which scores
differ for sure. This bounds every unit's places, and the places bound the shares [Mogstad, Romano, Shaikh and Wilhelm,
Inference for Ranks, 2024]. They hold the true shares with at least 95 %, and always the estimates.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import rankdata, wilcoxon

from lamina.config.metrics import METRICS
from lamina.errors import LaminaError, explained
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.relevance.statistics import bootstrap_weights, interval
from lamina.tables import store

# Layers left out at either end, if as many as these remain.
EDGE = 2
# A unit is badly misranked if its two places are further apart than this share of the units.
BADLY = 0.25
# Differences that rounding could make.
TINY = 1e-12


@dataclass(frozen=True)
class Agreement:
    """Of two metrics over n tasks; pairs are (statistic, low, high).

    Attributes
    ----------
    pearson, spearman : correlations over all units and tasks.
    misranked, badly : share of units in another place by the second metric, and in one more than `BADLY` away; low is
        what surely is, high what may be.
    confusion : (units, units), how often the unit at place i by the first metric is at place j by the second.
    variance_ratio : mean over units of the variance across tasks, of the first metric by the second's; None for one
        task, or a second metric that does not vary across tasks. Scores are standardised over all units and tasks of a
        metric.
    p_value : two-sided Wilcoxon signed-rank test of those variances, unit by unit; None for one task.
    """

    n_tasks: int
    pearson: tuple[float, float, float]
    spearman: tuple[float, float, float]
    misranked: tuple[float, float, float]
    badly: tuple[float, float, float]
    confusion: np.ndarray
    variance_ratio: tuple[float, float, float] | None
    p_value: float | None


def compare(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Agreement:
    """Two metrics, each as one array per task of shape (1 + draws, units), the first row being the estimate."""
    one, other = np.stack(first), np.stack(second)  # (tasks, 1 + draws, units)
    pooled = [np.moveaxis(scores, 0, 1).reshape(scores.shape[1], -1) for scores in (one, other)]
    # Among equals the deeper one is less relevant, as in every ranking.
    points = [scores[:, 0, ::-1].round(12) for scores in (one, other)]
    places = [rankdata(point, "ordinal", axis=-1)[:, ::-1] - 1 for point in points]
    apart = np.abs(places[0] - places[1])
    least, most, crossed = distances([one, other])
    confusion = np.zeros((one.shape[-1],) * 2, dtype=int)
    np.add.at(confusion, tuple(places), 1)
    ratio, p_value = None, None
    if len(one) > 1:
        spread = [task_variance(scores) for scores in (one, other)]
        means = [each.mean(axis=-1) for each in spread]
        if means[1][0] > TINY:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = _with_interval(means[0] / means[1])
        # scipy warns where two metrics vary alike to the last digit, and then says NaN.
        if (abs(spread[0][0] - spread[1][0]) > TINY).any():
            p_value = float(wilcoxon(spread[0][0], spread[1][0]).pvalue)

    def share(limit: float) -> tuple[float, float, float]:
        surely = (least > limit).sum(axis=1)
        if not limit:
            surely = np.maximum(surely, crossed)
        return float((apart > limit).mean()), float(surely.sum() / apart.size), float((most > limit).mean())

    return Agreement(
        len(one),
        _with_interval(correlation(*pooled)),
        _with_interval(correlation(*(rankdata(scores, axis=-1) for scores in pooled))),
        share(0),
        share(BADLY * one.shape[-1]),
        confusion,
        ratio,
        p_value,
    )


def distances(metrics: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far apart a unit's true places by two metrics are at least and at most, (tasks, units) each, and how many
    units have two different ones at least, (tasks,).

    `metrics` are scores of shape (tasks, 1 + draws, units). A pair of units is in order for sure where its difference
    is more standard errors from 0 than, in all but 5 % of the draws, any difference is from its estimate. Of two units
    that the metrics put in opposite orders for sure, one is in another place: so there are as many such units as it
    takes to have one of every such pair, which is no less than half a matching of the pairs doubled.
    """
    differences = [scores[..., :, None] - scores[..., None, :] for scores in metrics]
    errors = [gap[:, 1:].std(axis=1) for gap in differences]
    # A difference without error is never off.
    drawn = [
        (abs(gap[:, 1:] - gap[:, :1]) / np.where(error > TINY, error, np.inf)[:, None]).max(axis=(0, 2, 3))
        for gap, error in zip(differences, errors, strict=True)
    ]
    most = np.quantile(np.max(drawn, axis=0), 0.95)
    after, others_after = (
        gap[:, 0] > np.maximum(most * error, TINY) for gap, error in zip(differences, errors, strict=True)
    )
    opposite = after & others_after.swapaxes(1, 2)
    crossed = [(maximum_bipartite_matching(csr_array(both | both.T)) >= 0).sum() for both in opposite]
    (low, high), (other_low, other_high) = (
        (sure.sum(axis=2), sure.shape[1] - 1 - sure.sum(axis=1)) for sure in (after, others_after)
    )
    least = np.maximum(0, np.maximum(low - other_high, other_low - high))
    return least, np.maximum(high - other_low, other_high - low), -(-np.array(crossed) // 2)


def correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's, over the last axis; NaN where one side is constant."""
    one, other = (scores - scores.mean(axis=-1, keepdims=True) for scores in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = (one * other).sum(axis=-1) / np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))
    return found


def task_variance(scores: np.ndarray) -> np.ndarray:
    """Variance across tasks of standardised scores, (tasks, draws, units) to (draws, units); NaN if all are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((scores / scores.std(axis=(0, 2), keepdims=True)).var(axis=0))


def _with_interval(draws: np.ndarray) -> tuple[float, float, float]:
    low, high = interval(draws[1:]) if np.isfinite(draws[1:]).any() else (np.nan, np.nan)
    return float(draws[0]), float(low), float(high)


def draws_of(sweeps: pa.Table, metric: str, context: Context, samples: int) -> tuple[list[str], np.ndarray] | None:
    """Units and their scores, (1 + draws, units), from the sweeps of one unpruned model and calibration.

    Several passes may have measured it; the rows that hold the metric count. None where it was not measured, is
    undefined, or not finite.
    """
    column = sweeps[METRICS[metric].column]
    # A calibration that only repairs read was never swept, and has no rows at all.
    if column.null_count == len(column):
        return None
    columns = from_table(sweeps.filter(pc.or_(pc.is_valid(column), pc.equal(sweeps["unit"], "none"))))
    if not columns.units:
        return None
    edge = EDGE if len(columns.units) >= 4 * EDGE else 0
    keep = range(edge, len(columns.units) - edge)
    found = ranking(columns, metric, context, bootstrap_weights(samples, 0)[:, : columns.n_samples])
    scores = found.draws[:, keep]
    return ([columns.units[i] for i in keep], scores) if np.isfinite(scores).all() else None


def comparisons(
    calibrations: Sequence[Mapping[str, Any]], sweeps: pa.Table, first: str, second: str, score: str = "acc_norm"
) -> Iterator[tuple[str, str, list[str], Agreement]]:
    """(model, kind of unit, calibrations, agreement) of every model and kind that both metrics were measured on.

    `calibrations` are the rows of that table.
    """
    for model, kind, tables in base_sweeps(calibrations, sweeps):
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for row, table in tables:
            context = Context(row["chance_accuracy"], score)
            pair = [draws_of(table, metric, context, row["n_samples"]) for metric in (first, second)]
            if pair[0] and pair[1] and pair[0][0] == pair[1][0]:
                found[row["calibration"]] = pair[0][1], pair[1][1]
        if found:
            agreement = compare([one for one, _ in found.values()], [other for _, other in found.values()])
            yield model, kind, list(found), agreement


def base_sweeps(
    calibrations: Sequence[Mapping[str, Any]], sweeps: pa.Table
) -> Iterator[tuple[str, str, list[tuple[Mapping[str, Any], pa.Table]]]]:
    """(model, kind of unit, (row of a calibration, its rows of `sweeps`)), of the unpruned models."""
    sweeps = sweeps.filter(pc.and_(pc.equal(sweeps["selector"], "base"), pc.equal(sweeps["removed"], 0)))
    for model in sorted({row["model"] for row in calibrations}):
        for kind, pattern in (("layer", r"^\d+$"), ("attention", "attention$"), ("mlp", "mlp$")):
            units = pc.or_(pc.match_substring_regex(sweeps["unit"], pattern), pc.equal(sweeps["unit"], "none"))
            mine = sweeps.filter(pc.and_(pc.equal(sweeps["model"], model), units))
            rows = [row for row in calibrations if row["model"] == model]
            yield model, kind, [(row, mine.filter(pc.equal(mine["calibration"], row["calibration"]))) for row in rows]


def told(first: str, second: str, agreement: Agreement) -> str:
    """An agreement in words."""

    def shown(value: tuple[float, float, float]) -> str:
        return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"

    lines = [
        f"{len(agreement.confusion)} units, {agreement.n_tasks} calibrations",
        f"correlation: Pearson {shown(agreement.pearson)}, Spearman {shown(agreement.spearman)}",
        f"misranked by {second}: {shown(agreement.misranked)}, by more than a quarter: {shown(agreement.badly)}",
    ]
    if agreement.variance_ratio is not None and agreement.p_value is not None:
        lines.append(
            f"variance across tasks, {first} / {second}: {shown(agreement.variance_ratio)}, Wilcoxon signed-rank "
            f"p = {agreement.p_value:.2g}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="folder of the tables of a run")
    parser.add_argument("first", choices=METRICS)
    parser.add_argument("second", choices=METRICS)
    parser.add_argument("--score", default="acc_norm", choices=["acc", "acc_norm"])
    args = parser.parse_args()
    with explained():
        files = [args.tables / f"{name}.parquet" for name in ("calibrations", "sweeps")]
        if lacking := [file for file in files if not file.is_file()]:
            raise LaminaError(f"{lacking[0]} is not there. Run a study of maps, or name the folder of its tables.")
        calibrations, sweeps = map(store.read, files)
        blocks = list(comparisons(calibrations.to_pylist(), sweeps, args.first, args.second, args.score))
        if not blocks:
            raise LaminaError(
                f"{args.tables} holds no calibration on which both '{args.first}' and '{args.second}' tell units "
                "apart. List both under `metrics` of a study of maps."
            )
        for model, kind, names, agreement in blocks:
            print(f"{model}, {kind} ({', '.join(names)})\n{told(args.first, args.second, agreement)}\n")

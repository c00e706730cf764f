"""How two metrics agree over layers and tasks, with intervals [arXiv 2605.14075, §4, C.2, C.3].

If there are eight layers or more, the first and last two are left out, as in the paper: every
metric finds them relevant, and they alone would produce a correlation.

Correlations and variances are those of the true scores, which infinitely many samples would give.
The effect of sampling noise is subtracted (`true_scores`). A paired bootstrap over samples
estimates it: each draw scores both metrics on the same samples of every task. So these correlations
are larger than the plain correlation of the measured scores.

Shares of misranked units need another method. A bootstrap draw contains the noise twice, so shares
computed from draws are too high. Instead we test, jointly for all pairs of units, all tasks and
both metrics, which scores differ significantly. This bounds every unit's rank, and the ranks bound
the shares [Mogstad, Romano, Shaikh and Wilhelm, Inference for Ranks, 2024]. The bounds contain the
true shares with a probability of at least 95 %, and always the estimates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import rankdata, wilcoxon

from lamina.options.metrics import METRICS
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import rank_units
from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import (
    Interval,
    ranking_reliability,
    true_correlation,
    true_variance_ratio,
)

EDGE = 2
"""Units left out at each end, if at least as many remain as are left out."""

BADLY = 0.25
"""A unit is badly misranked if its two ranks differ by more than this share of the units."""

ROUNDING = 1e-12
"""Smaller differences may come from rounding."""

KIND_PATTERNS = {"layer": r"^\d+$", "attention": "attention$", "mlp": "mlp$"}
"""For each kind of unit, the pattern that its names match."""

Draws = np.ndarray
"""Scores of the units on one task under bootstrap weights, (1 + draws, units); the first row is the
estimate.
"""


@dataclass(frozen=True)
class MetricAgreement:
    """How two metrics agree over some tasks; intervals are (estimate, low, high)."""

    n_units: int

    pearson: Interval | None
    """Correlation of true scores over all units and tasks; None if a metric's scores are equal."""

    spearman: Interval | None
    """The same for the ranks."""

    misranked: Interval
    """Share of units whose rank differs between the metrics. Low is certain, high is possible."""

    badly: Interval
    """The same for ranks that differ by more than `BADLY`."""

    variance_ratio: Interval | None
    """Mean over units of the variance of true scores across tasks: the first metric's divided by
    the second's.

    Scores are standardised over all units and tasks of a metric. None for one task, or without
    variance.
    """

    p_value: float | None
    """p of a two-sided Wilcoxon signed-rank test of these variances, paired by unit; None for one
    task.
    """


class Comparison(NamedTuple):
    """Two metrics of one model and kind of unit."""

    model: str
    kind: str
    metric: str
    calibrations: list[str]
    agreement: MetricAgreement


class MetricReliability(NamedTuple):
    """How reliable the ranking of one metric on one calibration is."""

    calibration: Mapping[str, Any]
    kind: str
    metric: str
    n_units: int
    value: Interval


class UnitScores(NamedTuple):
    """Scores of some units by one metric on one calibration."""

    units: list[str]
    draws: Draws


class BaseSweep(NamedTuple):
    """Rows of table `sweeps` of one base model, on one calibration, for one kind of unit.

    `calibration` is a row of table `calibrations`.
    """

    calibration: Mapping[str, Any]
    kind: str
    table: pa.Table


def compare_metrics(
    first: Sequence[Draws], second: Sequence[Draws], n_samples: int
) -> MetricAgreement:
    """The agreement of two metrics, from their scores by task.

    n_samples: The number of samples of the smallest task.
    """
    first_draws = np.stack(first)  # (tasks, 1 + draws, units)
    second_draws = np.stack(second)
    n_units = first_draws.shape[-1]
    first_pooled = _pool_tasks(first_draws)
    second_pooled = _pool_tasks(second_draws)
    misranked, badly = _misranked_shares(first_draws, second_draws)

    variance_ratio = None
    p_value = None
    if len(first_draws) > 1:
        variance_ratio, *variances = true_variance_ratio(first_draws, second_draws, n_samples)
        # scipy warns and returns NaN if two metrics vary alike to the last digit.
        if (abs(variances[0] - variances[1]) > ROUNDING).any():
            p_value = float(wilcoxon(*variances).pvalue)

    return MetricAgreement(
        n_units,
        pearson=true_correlation(first_pooled, second_pooled, n_samples),
        spearman=true_correlation(first_pooled, second_pooled, n_samples, ranked=True),
        misranked=misranked,
        badly=badly,
        variance_ratio=variance_ratio,
        p_value=p_value,
    )


def _pool_tasks(draws: np.ndarray) -> np.ndarray:
    """(tasks, 1 + draws, units) as (1 + draws, tasks · units)."""
    return np.moveaxis(draws, 0, 1).reshape(draws.shape[1], -1)


def _misranked_shares(
    first_draws: np.ndarray, second_draws: np.ndarray
) -> tuple[Interval, Interval]:
    """Shares of all tasks' units with a different rank, and with one more than `BADLY` away."""
    rank_distance = np.abs(_ranks(first_draws) - _ranks(second_draws))
    distance_bounds = rank_distances(first_draws, second_draws)

    n_certain = np.maximum((distance_bounds.least > 0).sum(axis=1), distance_bounds.n_misranked)
    misranked = (
        float((rank_distance > 0).mean()),
        float(n_certain.sum() / rank_distance.size),
        float((distance_bounds.most > 0).mean()),
    )

    distance_limit = BADLY * rank_distance.shape[-1]
    n_certain_badly = (distance_bounds.least > distance_limit).sum(axis=1)
    badly = (
        float((rank_distance > distance_limit).mean()),
        float(n_certain_badly.sum() / rank_distance.size),
        float((distance_bounds.most > distance_limit).mean()),
    )
    return misranked, badly


def _ranks(draws: np.ndarray) -> np.ndarray:
    """Ranks of the estimates of each task, (tasks, units), from 0.

    Of two units with equal scores, the deeper one is less relevant.
    """
    deepest_first = draws[:, 0, ::-1].round(12)
    ranks: np.ndarray = rankdata(deepest_first, "ordinal", axis=-1)[:, ::-1] - 1
    return ranks


class RankDistances(NamedTuple):
    """Bounds on the distance between the true ranks by two metrics.

    They hold with 95 % for all tasks and units at once.
    """

    least: np.ndarray
    """Lower bounds, (tasks, units)."""

    most: np.ndarray
    """Upper bounds, (tasks, units)."""

    n_misranked: np.ndarray
    """The least number of units with two different ranks, (tasks,)."""


def rank_distances(first_draws: np.ndarray, second_draws: np.ndarray) -> RankDistances:
    """Bounds on the distances of true ranks, from scores of shape (tasks, 1 + draws, units).

    The largest deviation of any difference from its estimate, in standard errors, has a 95 %
    quantile over the draws. The order of two units is certain if their difference is further from 0
    than this quantile. If the two metrics certainly order a pair differently, at least one of the
    pair has two different ranks. So the number of such units is at least that of a minimum vertex
    cover of these pairs, which is at least half of a matching of the doubled pairs.
    """
    first_errors, first_furthest = _difference_errors(first_draws)
    second_errors, second_furthest = _difference_errors(second_draws)
    error_quantile = np.quantile(np.maximum(first_furthest, second_furthest), 0.95)
    first_above = _is_above(first_draws, error_quantile * first_errors)
    second_above = _is_above(second_draws, error_quantile * second_errors)

    first_low, first_high = _rank_bounds(first_above)
    second_low, second_high = _rank_bounds(second_above)
    bound_gaps = np.maximum(first_low - second_high, second_low - first_high)
    least_distances = np.maximum(0, bound_gaps)
    largest_distances = np.maximum(first_high - second_low, second_high - first_low)
    return RankDistances(least_distances, largest_distances, _n_opposite(first_above, second_above))


def _difference_errors(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of the differences of all pairs of units, and the draws' largest deviations.

    The errors are (tasks, units, units). The deviations are in standard errors, (draws,), over all
    tasks and pairs.
    """
    n_tasks, n_rows, n_units = draws.shape
    standard_errors = np.empty((n_tasks, n_units, n_units))
    furthest_deviations = np.zeros(n_rows - 1)
    # Task by task: the differences of all draws of all tasks would take gigabytes.
    for task, task_draws in enumerate(draws):
        differences = task_draws[:, :, None] - task_draws[:, None, :]
        standard_errors[task] = differences[1:].std(axis=0)
        # A difference without error never deviates.
        divisor = np.where(standard_errors[task] > ROUNDING, standard_errors[task], np.inf)
        distances = abs(differences[1:] - differences[0]) / divisor
        furthest_deviations = np.maximum(furthest_deviations, distances.max(axis=(1, 2)))
    return standard_errors, furthest_deviations


def _is_above(draws: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Whether the first unit's score is significantly above the second's, (tasks, units, units)."""
    estimates = draws[:, 0]
    differences = estimates[:, :, None] - estimates[:, None, :]
    above: np.ndarray = differences > np.maximum(thresholds, ROUNDING)
    return above


def _rank_bounds(above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest rank of each unit, from 0, (tasks, units) each."""
    n_units = above.shape[1]
    return above.sum(axis=2), n_units - 1 - above.sum(axis=1)


def _n_opposite(first_above: np.ndarray, second_above: np.ndarray) -> np.ndarray:
    """The least number of units of each task that are in a pair with opposite orders, (tasks,)."""
    has_opposite_order = first_above & second_above.swapaxes(1, 2)
    n_matched = []
    for task_pairs in has_opposite_order:
        matching = maximum_bipartite_matching(csr_array(task_pairs | task_pairs.T))
        n_matched.append((matching >= 0).sum())
    return -(-np.array(n_matched) // 2)


@lru_cache(maxsize=1)
def _weights(n_samples: int) -> np.ndarray:
    return bootstrap_weights(n_samples, 0)


def score_draws(
    sweeps: pa.Table, metric: str, context: Context, n_samples: int
) -> UnitScores | None:
    """Scores of the units by one metric, from one base model's sweeps, without the outer layers.

    Several passes may have rows; those with values of the metric count. None if the metric was not
    measured, is undefined, or is not finite.
    """
    first_column = sweeps[METRICS[metric].columns[0]]
    # A calibration that only repairs read was never swept and has no rows.
    if first_column.null_count == len(first_column):
        return None
    is_current_model = pc.equal(sweeps["unit"], "none")
    sweep_columns = from_table(sweeps.filter(pc.or_(pc.is_valid(first_column), is_current_model)))
    if not sweep_columns.units:
        return None

    n_edge_layers = EDGE if len(sweep_columns.units) >= 4 * EDGE else 0
    inner_units = range(n_edge_layers, len(sweep_columns.units) - n_edge_layers)
    sample_weights = _weights(n_samples)[:, : sweep_columns.n_samples]
    draws = rank_units(sweep_columns, metric, context, sample_weights).draws[:, inner_units]
    if not np.isfinite(draws).all():
        return None
    return UnitScores([sweep_columns.units[index] for index in inner_units], draws)


def comparison_rows(
    calibrations: Sequence[Mapping[str, Any]],
    sweeps: dataset.Dataset,
    first: str,
    others: Sequence[str],
) -> Iterator[Comparison]:
    """Compare `first` with each of `others`, for every model and kind of unit.

    Only calibrations on which both have scores count, and only metrics that distinguish units.

    `calibrations` are the rows of that table; sweeps are read calibration by calibration.
    """
    paired_scores = _paired_scores(calibrations, sweeps, first, others)
    kinds = list(KIND_PATTERNS)
    n_samples = {(row["model"], row["calibration"]): row["n_samples"] for row in calibrations}
    for model, kind, metric in sorted(
        paired_scores, key=lambda key: (key[0], kinds.index(key[1]), others.index(key[2]))
    ):
        draws_by_calibration = paired_scores[model, kind, metric]
        fewest_samples = min(n_samples[model, calibration] for calibration in draws_by_calibration)
        first_draws = [first_scores for first_scores, _ in draws_by_calibration.values()]
        other_draws = [other_scores for _, other_scores in draws_by_calibration.values()]
        agreement = compare_metrics(first_draws, other_draws, fewest_samples)
        if agreement.pearson:
            yield Comparison(model, kind, metric, list(draws_by_calibration), agreement)


def _paired_scores(
    calibrations: Sequence[Mapping[str, Any]],
    sweeps: dataset.Dataset,
    first: str,
    others: Sequence[str],
) -> dict[tuple[str, str, str], dict[str, tuple[Draws, Draws]]]:
    """Draws of `first` and of another metric by calibration, for every such pair.

    The keys are the model, the kind of unit and the other metric.
    """
    paired_scores: dict[tuple[str, str, str], dict[str, tuple[Draws, Draws]]] = {}
    for calibration, kind, sweep_table in base_sweeps(calibrations, sweeps):
        context = Context.from_calibration(calibration)
        first_scores = score_draws(sweep_table, first, context, calibration["n_samples"])
        if first_scores is None:
            continue
        for metric in others:
            other_scores = score_draws(sweep_table, metric, context, calibration["n_samples"])
            if other_scores and first_scores.units == other_scores.units:
                key = (calibration["model"], kind, metric)
                pair = (first_scores.draws, other_scores.draws)
                paired_scores.setdefault(key, {})[calibration["calibration"]] = pair
    return paired_scores


def reliabilities(
    calibrations: Sequence[Mapping[str, Any]],
    sweeps: dataset.Dataset,
    metrics: Sequence[str],
) -> Iterator[MetricReliability]:
    """The reliability of every measured ranking: by metric, calibration and kind of unit."""
    for calibration, kind, sweep_table in base_sweeps(calibrations, sweeps):
        context = Context.from_calibration(calibration)
        n_samples = calibration["n_samples"]
        for metric in metrics:
            unit_scores = score_draws(sweep_table, metric, context, n_samples)
            reliability = ranking_reliability(unit_scores.draws, n_samples) if unit_scores else None
            if unit_scores and reliability:
                yield MetricReliability(
                    calibration, kind, metric, len(unit_scores.units), reliability
                )


def base_sweeps(
    calibrations: Sequence[Mapping[str, Any]], sweeps: dataset.Dataset
) -> Iterator[BaseSweep]:
    """The sweeps of base models, read one by one; `calibrations` are the rows of that table."""
    is_base = (dataset.field("selector") == "base") & (dataset.field("removed") == 0)
    for calibration in calibrations:
        is_model = dataset.field("model") == calibration["model"]
        is_calibration = dataset.field("calibration") == calibration["calibration"]
        calibration_table = sweeps.to_table(filter=is_base & is_model & is_calibration)
        for kind, pattern in KIND_PATTERNS.items():
            is_kind = pc.match_substring_regex(calibration_table["unit"], pattern)
            is_current_model = pc.equal(calibration_table["unit"], "none")
            yield BaseSweep(
                calibration, kind, calibration_table.filter(pc.or_(is_kind, is_current_model))
            )

"""The ranking of a sweep's units by one metric, and the rows of table `relevance`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pyarrow as pa

from lamina.models.units import parse_unit
from lamina.relevance import protocol
from lamina.relevance.columns import Columns, Context, from_table
from lamina.relevance.statistics import bootstrap_weights


@dataclass(frozen=True)
class Ranking:
    """Units by one metric, in the order of `columns.units`."""

    draws: np.ndarray
    """Scores under each weighting of the samples, (1 + draws, units); the first row is the
    estimate.

    NaN where the metric is undefined.
    """

    ranks: list[int] | None
    """The rank of each unit; None if nothing can rank them.

    Rank 1 is the least relevant unit, which is removed first. Of equal units the deeper one comes
    first. Scores that are not finite come last.
    """

    reason: str | None
    """Why the metric is undefined."""


class RelevanceRow(TypedDict):
    """A row of table `relevance` without the keys of its sweep.

    `lamina.tables.sweep` describes the columns.
    """

    metric: str
    unit: str
    layer: int
    component: str
    score: float | None
    ci_low: float | None
    ci_high: float | None
    n_samples: int
    n_not_finite: int
    rank: int | None
    reason: str | None


def rank_units(
    columns: Columns, metric: str, context: Context, sample_weights: np.ndarray | None = None
) -> Ranking:
    """Rank the units by `metric`.

    sample_weights: Bootstrap weights of the samples, (1 + draws, samples); by default the plain
    mean alone.
    """
    if sample_weights is None:
        sample_weights = np.full((1, columns.n_samples), 1 / columns.n_samples)
    scorer = protocol.metric_named(metric)

    undefined_reason = scorer.undefined(columns, context)
    if undefined_reason is None:
        draws = scorer.score(columns, sample_weights, context)
        # Equal scores must compare equal, however their sums were rounded.
        sort_keys = np.where(np.isfinite(draws[0]), draws[0].round(12), np.inf)[:, None]
        return Ranking(draws, _ranks(columns, sort_keys), None)

    reason, substitute_keys = undefined_reason
    no_draws = np.full((len(sample_weights), len(columns.units)), np.nan)
    ranks = None if substitute_keys is None else _ranks(columns, substitute_keys)
    return Ranking(no_draws, ranks, reason)


def _ranks(columns: Columns, sort_keys: np.ndarray) -> list[int]:
    """Ranks from 1 by ascending keys, (units, keys); among equals the deeper unit comes first."""
    layer_indices = [parse_unit(unit)[0] for unit in columns.units]
    removal_order = sorted(
        range(len(layer_indices)),
        key=lambda index: (*sort_keys[index], -layer_indices[index]),
    )
    ranks = [0] * len(layer_indices)
    for rank, index in enumerate(removal_order, 1):
        ranks[index] = rank
    return ranks


def was_measured(columns: Columns, metric: str, context: Context) -> bool:
    """Whether the sweep holds the numbers of a metric, or the reason why it is undefined."""
    scorer = protocol.metric_named(metric)
    if columns.is_measured(scorer.columns[0]):
        return True
    return scorer.undefined(columns, context) is not None


def score_sweep(
    sweep: pa.Table, metrics: Iterable[str], context: Context, seed: int
) -> list[RelevanceRow]:
    """Rows of table `relevance` without its keys, for each of `metrics` that the sweep measured.

    A score that is not finite is null; its reason says on how many samples the removal gave no
    finite numbers.
    """
    columns = from_table(sweep)
    sample_weights = bootstrap_weights(columns.n_samples, seed)
    relevance_rows: list[RelevanceRow] = []
    for metric in metrics:
        if was_measured(columns, metric, context):
            relevance_rows += _metric_rows(metric, columns, context, sample_weights)
    return relevance_rows


def _metric_rows(
    metric: str, columns: Columns, context: Context, sample_weights: np.ndarray
) -> list[RelevanceRow]:
    """Rows of all units by one metric."""
    scorer = protocol.metric_named(metric)
    ranking = rank_units(columns, metric, context, sample_weights)
    scores = ranking.draws[0]
    ci_low, ci_high = _interval(scorer, columns, context, ranking, sample_weights, scores)
    n_not_finite = scorer.not_finite(columns)

    relevance_rows: list[RelevanceRow] = []
    for index, unit in enumerate(columns.units):
        layer_index, component = parse_unit(unit)
        has_score = bool(np.isfinite(scores[index]))
        n_seen = int(columns.seen[index + 1])
        reason = ranking.reason
        if not reason and not has_score and n_not_finite[index]:
            reason = f"{n_not_finite[index]} of {n_seen} samples not finite"
        relevance_rows.append(
            {
                "metric": metric,
                "unit": unit,
                "layer": layer_index,
                "component": component,
                "score": _finite(scores[index]),
                "ci_low": _finite(ci_low[index]) if has_score else None,
                "ci_high": _finite(ci_high[index]) if has_score else None,
                "n_samples": 0 if scorer.pass_ == "weights" else n_seen,
                "n_not_finite": int(n_not_finite[index]),
                "rank": ranking.ranks[index] if ranking.ranks else None,
                "reason": reason,
            }
        )
    return relevance_rows


def _interval(
    scorer: protocol.Metric,
    columns: Columns,
    context: Context,
    ranking: Ranking,
    sample_weights: np.ndarray,
    scores: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of each score, (units,) each. It contains the score.

    It is the score itself if no samples were used.
    """
    if ranking.reason is not None or scorer.pass_ == "weights":
        return scores, scores
    with np.errstate(all="ignore"):
        ci_low, ci_high = scorer.interval(columns, context, ranking.draws, sample_weights)
        return np.minimum(ci_low, scores), np.maximum(ci_high, scores)


def _finite(value: float) -> float | None:
    """The number, or None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None

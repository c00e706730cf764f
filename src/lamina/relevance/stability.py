"""How many samples a ranking needs: how well two disjoint calibrations of a size agree on it.

Both are drawn from one sweep, which holds every sample; no pass runs again.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.score import rank_units
from lamina.relevance.true_scores import Interval, rank_correlation

N_PAIRS = 200
"""Pairs of calibrations that are drawn for each size."""

SMALLEST_SIZE = 32


def calibration_sizes(n_samples: int) -> list[int]:
    """32, 64 … and half of the samples, the largest size of two disjoint calibrations."""
    largest_size = n_samples // 2
    if largest_size < SMALLEST_SIZE:
        return []
    doubling: list[int] = []
    size = SMALLEST_SIZE
    while size < largest_size:
        doubling.append(size)
        size *= 2
    return [*doubling, largest_size]


@lru_cache(
    maxsize=1
)  # all metrics of a calibration, and of others with as many samples, use the same weights
def disjoint_weights(n_samples: int, seed: int) -> list[tuple[int, np.ndarray]]:
    """For each size, sample weights of drawn pairs of calibrations, (2 * N_PAIRS, samples).

    The two calibrations of a pair are neighbouring rows.
    """
    generator = np.random.default_rng(seed)
    weights_by_size: list[tuple[int, np.ndarray]] = []
    for size in calibration_sizes(n_samples):
        pair_weights = np.zeros((2 * N_PAIRS, n_samples))
        for pair in range(N_PAIRS):
            sample_order = generator.permutation(n_samples)
            pair_weights[2 * pair, sample_order[:size]] = 1 / size
            pair_weights[2 * pair + 1, sample_order[size : 2 * size]] = 1 / size
        weights_by_size.append((size, pair_weights))
    return weights_by_size


def ranking_stability(
    columns: Columns, metric: str, context: Context, seed: int = 0
) -> Iterator[tuple[int, Interval]]:
    """For each size, Spearman's correlation over units of two disjoint calibrations' scores.

    The correlation is the median over the drawn pairs; the interval contains 95 % of them. A pair
    is left out if one of its calibrations is at chance or gives all units the same score. Nothing
    is yielded if the sweep of the base model has too few samples, or the metric is undefined.
    """
    for size, pair_weights in disjoint_weights(columns.n_samples, seed):
        score_draws = rank_units(columns, metric, context, pair_weights).draws
        if not np.isfinite(score_draws).any():
            return
        correlations = _pair_correlations(score_draws)
        if np.isfinite(correlations).any():
            median, ci_low, ci_high = np.nanpercentile(correlations, [50, 2.5, 97.5]).tolist()
            yield size, (median, ci_low, ci_high)


def _pair_correlations(scores: np.ndarray) -> np.ndarray:
    """Spearman's correlation of neighbouring rows of (2 * pairs, units) with finite scores."""
    has_scores = np.isfinite(scores).all(axis=-1)
    both_have_scores = has_scores.reshape(-1, 2).all(axis=-1)
    return rank_correlation(scores[0::2], scores[1::2])[both_have_scores]

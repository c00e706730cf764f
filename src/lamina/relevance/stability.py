"""The number of samples that a ranking needs: how alike two calibrations of a size rank units, if they share no sample.

Both are drawn from one sweep, which holds every sample: no pass is run again.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.score import ranking
from lamina.relevance.true_scores import Interval, correlation

PAIRS = 200  # drawn for each size
SMALLEST = 32


def sizes(n_samples: int) -> list[int]:
    """32, 64 … and half of the samples, the largest size of two calibrations without a common sample."""
    most = n_samples // 2
    doubling = [SMALLEST << power for power in range(20) if SMALLEST << power < most]
    return [*doubling, most] if most >= SMALLEST else []


@lru_cache(maxsize=1)  # all metrics of a calibration ask for the same, and others of its size too
def halves_of(n_samples: int, seed: int) -> list[tuple[int, np.ndarray]]:
    """Weights of the samples in the drawn pairs of each size, (2 * PAIRS, samples), the two of a pair in turn."""
    generator, drawn = np.random.default_rng(seed), []
    for size in sizes(n_samples):
        weights = np.zeros((2 * PAIRS, n_samples))
        for pair in range(PAIRS):
            order = generator.permutation(n_samples)
            weights[2 * pair, order[:size]] = weights[2 * pair + 1, order[size : 2 * size]] = (
                1 / size
            )
        drawn.append((size, weights))
    return drawn


def stability(
    columns: Columns, metric: str, context: Context, seed: int = 0
) -> Iterator[tuple[int, Interval]]:
    """Each size of two calibrations without a common sample, and Spearman's correlation over units of their scores: the
    median of the drawn pairs, and the ends between which 95 % of them lie. Nothing where the sweep of the unpruned
    model has too few samples, or the metric is undefined.

    A pair is left out if one of its halves is at chance or gives all units the same score.
    """
    from scipy.stats import rankdata  # which takes a second to import

    for size, weights in halves_of(columns.n_samples, seed):
        scores = ranking(columns, metric, context, weights).draws
        if not np.isfinite(scores).any():
            return
        halves = [rankdata(scores[start::2].round(12), axis=-1) for start in (0, 1)]
        rho = correlation(halves[0], halves[1])[
            np.isfinite(scores).all(axis=-1).reshape(-1, 2).all(axis=-1)
        ]
        if np.isfinite(rho).any():
            median, low, high = np.nanpercentile(rho, [50, 2.5, 97.5]).tolist()
            yield size, (median, low, high)

"""The common part of metrics that measure random cut models: their scores, and when they have none."""

from collections.abc import Callable, Sequence

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean
from lamina.relevance.metrics import accuracy

REMEDY = accuracy.REMEDY

# Values of the model without each of some sets of its units (by number), sample by sample: (sets, samples).
Value = Callable[[Sequence[frozenset[int]]], np.ndarray]


def mean_with_error(name: str, columns: Columns, weights: np.ndarray, seed: int) -> np.ndarray:
    """Means over samples, (draws, units), whose draws also have the error of the random coalitions.

    A bootstrap over samples keeps the drawn coalitions. So a normal variable with the standard error over coalitions is
    added to each draw, except for the first, which is the estimate.
    """
    means, error = weighted_mean(weights, columns.values[name][1:]), columns.values[f"{name}_error"][1:]
    noise = np.random.default_rng(seed).normal(size=means.shape) * error.max(
        axis=1, initial=-np.inf, where=error == error
    )
    noise[0] = 0
    return means + noise


def undefined(name: str, columns: Columns, context: Context) -> tuple[str, None] | None:
    """Why there are no scores: the model itself is at chance, so the value of its parts would be noise."""
    reason = None if columns.has(name) else accuracy.undefined(columns, context)
    return reason and (reason[0], None)

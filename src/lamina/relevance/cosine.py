"""Block influence: how much a unit turns the residual stream. No unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean over samples of the mean over tokens of 1 - cos(h_l, h_{l+1}), (draws, units) [arXiv 2605.14075, eq. 2]."""
    return weighted_mean(weights, columns.values["cosine"][1:])

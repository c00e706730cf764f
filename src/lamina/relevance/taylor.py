"""What the loss would feel, to first order, if a unit's weights went. No unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Sum over a unit's weights of abs(w · ∂loss/∂w), (draws, units) [LLM-Pruner, Shortened LLaMA].

    A sample's share of that sum is its own first-order loss change along the signs of the mean gradient, so the mean of
    the shares is the score and their spread its sampling error.
    """
    return weighted_mean(weights, columns.values["taylor"][1:])

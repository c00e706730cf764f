"""How much of the stream no linear patch could give back where a unit went. No unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Sum over the runs of removed layers of ‖Y - Ŷ‖² / ‖Y - mean‖² at their ends, (draws, units), cross-fitted."""
    return weighted_mean(weights, columns.values["residual"][1:])

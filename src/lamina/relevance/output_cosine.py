"""How far the output turns: its logits against the unpruned model's."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean over samples of 1 - cos of the logits at the scored positions, (draws, units) [FinerCut]."""
    return weighted_mean(weights, columns.values["output_cosine"][1:])

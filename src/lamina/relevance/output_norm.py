"""How far the output moves: its logits from the unpruned model's."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean over samples of the L2 distance of the logits at the scored positions, (draws, units) [FinerCut]."""
    return weighted_mean(weights, columns.values["output_norm"][1:])

"""How differently the output is distributed, symmetrically."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean over samples of JS(base, f_-u) of the next-token distributions, in nats, (draws, units) [FinerCut]."""
    return weighted_mean(weights, columns.values["output_js"][1:])

"""How often another token becomes the likeliest one: what greedy decoding would do otherwise."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """1 - share of scored positions where base and f_-u agree in their argmax, mean over samples, (draws, units).

    For greedy decoding that is how often a draft by f_-u would be rejected [Leviathan et al., arXiv 2211.17192].
    """
    return weighted_mean(weights, columns.values["output_flips"][1:])

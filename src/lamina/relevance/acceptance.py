"""How often the unpruned model would reject what the cut one drafts."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """1 - mean of Σ_v min(p, q), the total variation of base and f_-u, (draws, units).

    A token drafted from q is accepted with chance Σ_v min(p, q) [Leviathan et al., arXiv 2211.17192, cor. 3.6].
    """
    return weighted_mean(weights, columns.values["output_tv"][1:])

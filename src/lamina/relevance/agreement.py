"""How often another token becomes the likeliest one: 1 - share of scored tokens where the argmax stays.

For greedy decoding that is how often a draft by f_-u would be rejected [Leviathan et al., arXiv 2211.17192].
"""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.statistics import share_interval


def interval(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval where each sample has one position, or no token changed at all, (units,); NaN elsewhere.

    There the score is a proportion, of which none in n samples is no proof of none.
    """
    flips = columns.values["output_flips"][1:]
    whole = (np.isnan(flips) | (flips == 0) | (flips == 1)).all(axis=1)
    low, high = share_interval(np.nansum(flips, axis=1), (~np.isnan(flips)).sum(axis=1))
    return np.where(whole, low, np.nan), np.where(whole, high, np.nan)

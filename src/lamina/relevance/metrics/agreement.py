"""How often another token becomes the likeliest one: 1 - share of scored tokens where the argmax stays.

For greedy decoding, this is how often a draft by f_-u would be rejected [Leviathan et al., arXiv 2211.17192].
"""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.statistics import share_interval

METRIC = {
    "pass_": "removal",
    "column": "output_flips",
    "help": "share of tokens where another one becomes likeliest",
    "bound": 1.0,
}

# So many samples with a changed token are enough for a bootstrap.
_ENOUGH = 30


def interval(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval where each sample has one position, or few samples have a changed token, (units,); NaN elsewhere.

    There the score is a proportion, and 0 of n samples do not prove that it is 0. Samples of several positions are
    counted as the number of single positions with the same error [Korn and Graubard 1998].
    """
    flips = columns.values["output_flips"][1:]
    there = ~np.isnan(flips)
    count, flips = there.sum(axis=1), np.where(there, flips, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = flips.sum(axis=1) / count
        variance = (np.where(there, flips - share[:, None], 0.0) ** 2).sum(axis=1) / count**2
        alike = share * (1 - share) / variance
    # Of samples that are all alike, nothing says how many tokens are as good as one.
    size = np.where(np.isfinite(alike), np.maximum(alike, count), count)
    low, high = share_interval(share * size, size)
    counted = ((flips == 0) | (flips == 1)).all(axis=1) | ((flips > 0).sum(axis=1) < _ENOUGH)
    return np.where(counted, low, np.nan), np.where(counted, high, np.nan)

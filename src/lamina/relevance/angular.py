"""How much a unit turns the residual stream at the last token, as an angle. No unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean of arccos(cos(h_l[T], h_{l+1}[T])) / π at the last token T, (draws, units) [arXiv 2403.17887, eq. 6]."""
    return weighted_mean(weights, columns.values["angular_last"][1:])

"""The size of a unit's weights. It uses no samples."""

import numpy as np

from lamina.relevance.columns import Columns, Context

METRIC = {"pass_": "weights", "column": "magnitude", "help": "sum of abs(weight)"}


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Sum of abs(w) over a unit's weights, (draws, units). It does not depend on samples, so all draws are equal."""
    value = np.nanmax(columns.values["magnitude"][1:], axis=1)
    return np.broadcast_to(value, (len(weights), len(value)))

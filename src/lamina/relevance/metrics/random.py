"""The baseline of every metric: units in a random order."""

import numpy as np

from lamina.relevance.columns import Columns, Context

METRIC = {"pass_": "weights", "column": "magnitude", "help": "a seeded permutation, as a baseline"}


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Places 1 … units of a seeded permutation, (draws, units). No sample is used, so all draws are equal."""
    n = len(columns.units)
    places = np.random.default_rng(context.seed).permutation(n) + 1.0
    return np.broadcast_to(places, (len(weights), n))

"""Metrics that compare a unit's input with its output: one forward pass, no removal."""

import numpy as np

from lamina.relevance.columns import Columns, weighted_mean

PASS = "stream"


def cosine(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Mean over samples of the mean over tokens of 1 - cos(h_l, h_{l+1}), (draws, units) [arXiv 2605.14075, eq. 2]."""
    return weighted_mean(weights, columns.values["cosine"][1:])


def angular(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Mean of arccos(cos(h_l[T], h_{l+1}[T])) / π at the last token T, (draws, units) [arXiv 2403.17887, eq. 6]."""
    return weighted_mean(weights, columns.values["angular_last"][1:])

"""Metrics read off the weights, with or without their gradient: no unit is removed to measure them."""

import numpy as np

from lamina.relevance.columns import Columns, weighted_mean

PASS = "weights"


def taylor(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Sum over a unit's weights of abs(w · ∂loss/∂w), (draws, units) [LLM-Pruner, Shortened LLaMA].

    A sample's share of that sum is its own first-order loss change along the signs of the mean gradient, so the mean of
    the shares is the score and their spread its sampling error.
    """
    return weighted_mean(weights, columns.values["taylor"][1:])


def magnitude(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Sum of abs(w) over a unit's weights, (draws, units): no sample enters, so every draw is the same."""
    value = np.nanmax(columns.values["magnitude"][1:], axis=1)
    return np.broadcast_to(value, (len(weights), len(value)))

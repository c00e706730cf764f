"""Metrics of the weights, and a random order as their baseline. No unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.protocol import Metric


class Magnitude(Metric):
    """The sum of abs(w) over a unit's weights."""

    name = "magnitude"
    pass_ = "weights"
    columns = ("magnitude",)
    help = "sum of abs(weight)"

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """It does not depend on samples, so all draws are equal."""
        magnitudes = np.nanmax(columns.values["magnitude"][1:], axis=1)
        return np.broadcast_to(magnitudes, (len(weights), len(magnitudes)))


class Taylor(Metric):
    """The change of the loss, to first order, if a unit is removed: the sum of abs(w · ∂loss/∂w).

    The sum is over the unit's weights w.

    A sample's contribution to that sum is its own first-order loss change along the signs of the
    mean gradient. So the mean of the contributions is the score, and their spread its sampling
    error [LLM-Pruner, Shortened LLaMA].
    """

    name = "taylor"
    pass_ = "gradient"
    columns = ("taylor",)
    help = "sum of abs(weight × gradient)"


class RandomOrder(Metric):
    """Units in a random order."""

    name = "random"
    pass_ = "weights"
    columns = ("magnitude",)
    help = "a seeded random order, as a baseline"

    def score(self, columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
        """Ranks 1 … units. No sample is used, so all draws are equal."""
        n_units = len(columns.units)
        random_ranks = np.random.default_rng(context.seed).permutation(n_units) + 1.0
        return np.broadcast_to(random_ranks, (len(weights), n_units))

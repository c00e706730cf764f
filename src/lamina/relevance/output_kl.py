"""How much of the unpruned model's distribution is lost."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Mean over samples of KL(base ‖ f_-u) of the next-token distributions, in nats, (draws, units) [EvoPress]."""
    return weighted_mean(weights, columns.values["output_kl"][1:])

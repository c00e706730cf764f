"""Perplexity relevance: how much the loss rises when a unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """Rise of the mean negative log-likelihood per scored token, in nats, (draws, units) [SLEB, Shortened LLaMA]."""
    nll, tokens = columns.values["nll"], columns.values["n_tokens"]
    there = ~np.isnan(nll[1:])

    def loss(row: np.ndarray) -> np.ndarray:
        paired, counted = np.where(there, row, np.nan), np.where(there, tokens[:1], np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            return weighted_mean(weights, paired) / weighted_mean(weights, counted)

    return loss(nll[1:]) - loss(nll[:1])

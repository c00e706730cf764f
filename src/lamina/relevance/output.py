"""Metrics of what a removal does to the output: its loss, and its distance to the unpruned model's output."""

import numpy as np

from lamina.relevance.columns import Columns

PASS = "removal"


def perplexity(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Rise of the mean negative log-likelihood per scored token, in nats, (draws, units) [SLEB, Shortened LLaMA]."""
    tokens = weights @ columns.values["n_tokens"][0]
    loss = (weights @ columns.values["nll"].T) / tokens[:, None]
    return loss[:, 1:] - loss[:, :1]


def distance(columns: Columns, weights: np.ndarray, name: str) -> np.ndarray:
    """Mean of one of the output distances over samples, (draws, units) [FinerCut; EvoPress for KL]."""
    return weights @ columns.values[name][1:].T

"""Metrics of what a removal does to the output: its loss, and its distance to the unpruned model's output."""

import numpy as np

from lamina.relevance.columns import Columns, weighted_mean

PASS = "removal"


def perplexity(columns: Columns, weights: np.ndarray) -> np.ndarray:
    """Rise of the mean negative log-likelihood per scored token, in nats, (draws, units) [SLEB, Shortened LLaMA]."""
    nll, tokens = columns.values["nll"], columns.values["n_tokens"]
    there = np.isfinite(nll[1:])

    def loss(row: np.ndarray) -> np.ndarray:
        paired, counted = np.where(there, row, np.nan), np.where(there, tokens[:1], np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            return weighted_mean(weights, paired) / weighted_mean(weights, counted)

    return loss(nll[1:]) - loss(nll[:1])


def distance(columns: Columns, weights: np.ndarray, name: str) -> np.ndarray:
    """Mean of one of the output distances over samples, (draws, units) [FinerCut; EvoPress for KL]."""
    return weighted_mean(weights, columns.values[name][1:])

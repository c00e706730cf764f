"""Perplexity relevance: how much the loss rises when a unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context

METRIC = {"pass_": "removal", "column": "nll", "help": "how much the loss rises"}


def terms(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Rise of the loss in nats, and scored tokens, (units, samples) each [SLEB, Shortened LLaMA]."""
    nll, tokens = columns.values["nll"], columns.values["n_tokens"]
    return nll[1:] - nll[:1], np.broadcast_to(tokens[:1], nll[1:].shape)

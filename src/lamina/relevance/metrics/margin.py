"""How far the right choice's lead falls: accuracy's forward passes without its 0/1 noise."""

import numpy as np

from lamina.relevance.columns import Columns, Context

METRIC = {
    "pass_": "removal",
    "column": "gold_margin",
    "help": "how far the right choice's lead over the best other falls",
    "signed": True,
}

REMEDY = "Write metric: accuracy or perplexity, or make calibration '{calibration}' of multiple choice alone."


def lead(columns: Columns, score: str) -> np.ndarray:
    """Score of the gold choice less that of the best other choice, by `acc` or `acc_norm`, (units + 1, samples)."""
    return columns.values["gold_margin_norm" if score == "acc_norm" else "gold_margin"]


def terms(columns: Columns, context: Context) -> tuple[np.ndarray, None]:
    """Drop of the decision margin, in nats (per character for `acc_norm`), (units, samples) [arXiv 2605.07271].

    A unit that left the sweep early is compared with the model on the samples that both saw.
    """
    of = lead(columns, context.score)
    return of[:1] - of[1:], None


def undefined(columns: Columns, context: Context) -> tuple[str, None] | None:
    """Samples without choices have no margin; the mean over the others would use only a part of the calibration."""
    lacking = int(np.isnan(columns.values["correct_norm"][0]).sum())
    if not lacking:
        return None
    return f"{lacking} of {columns.n_samples} samples have no choices to lead over", None

"""Accuracy as a probability: how much of the model's sureness of right answers, above chance, is lost with a unit.

p_s = softmax over the choices of (score / τ) at the gold one, with the scores that accuracy compares. A removal that
moves the score of an answer counts before the answer flips. So the 0/1 noise of accuracy is gone, while its unit and
meaning stay. This metric is lamina's own.
"""

import numpy as np

from lamina.relevance.columns import Columns, Context
from lamina.relevance.metrics import accuracy
from lamina.relevance.sureness import probability, temperature

METRIC = {
    "pass_": "removal",
    "column": "choice_scores",
    "help": "share of the sureness of right answers above chance that is lost: accuracy without its 0/1 noise",
    "bound": 1.0,
}

REMEDY = (
    f"{accuracy.REMEDY} Without choices there is nothing to be sure of: write metric: perplexity, or make calibration "
    "'{calibration}' of multiple choice alone."
)


def terms(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """p(f) - p(f_-u), and p(f) - r, (units, samples) each; r is chance, so that the ratio of sums is 1 at chance.

    τ is fitted on the model before the removal, and the intervals take it as known. A unit that left the sweep early is
    compared with the model on the samples that both saw.
    """
    sure = probabilities(columns, context.score)
    return sure[:1] - sure[1:], np.broadcast_to(sure[:1] - context.chance, sure[1:].shape)


def undefined(columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
    """As for accuracy. In addition, samples without choices have no probability of the right choice."""
    lacking = int(np.isnan(columns.values["correct_norm"][0]).sum())
    if lacking:
        return f"{lacking} of {columns.n_samples} samples have no choices to be sure of", None
    if not columns.has("choice_scores"):
        return None
    if (reason := accuracy.undefined(columns, context)) is not None:
        return reason
    sure = float(np.nanmean(probabilities(columns, context.score)[0]))
    if sure > context.chance:
        return None
    return f"the right choices have a mean probability of {sure:.3f}, not above chance ({context.chance:.3f})", None


def probabilities(columns: Columns, score: str) -> np.ndarray:
    """p of each unit and sample, (units + 1, samples), τ fitted on the model before the removal (row 0)."""
    compared = columns.values["choice_scores"]
    if score == "acc_norm":
        compared = compared / columns.values["choice_lengths"]
    return probability(compared, temperature(compared[0]))

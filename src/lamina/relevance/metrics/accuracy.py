"""Accuracy relevance: the share of the accuracy above chance that is lost when a unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean
from lamina.relevance.statistics import DRAWS, TAIL, wilson_interval

METRIC = {
    "pass_": "removal",
    "column": "correct",
    "help": "share of the model's advantage over chance that is lost",
    "bound": 1.0,
}

# For who would rank units of a model that is at chance.
REMEDY = (
    "Give calibration '{calibration}' more samples or few-shot examples, choose a task that the model can do, or a "
    "selector whose metric needs no accuracy (perplexity, cosine, angular)."
)


def hits(columns: Columns, score: str) -> np.ndarray:
    """1 where the answer to a sample is right, (units + 1, samples); length-normalised if `score` is `acc_norm`.

    Text and generated answers have no choices to normalise, so their plain correctness counts.
    """
    plain, normalised = columns.values["correct"], columns.values["correct_norm"]
    return np.where(np.isnan(normalised), plain, normalised) if score == "acc_norm" else plain


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """1 - max(acc(f_-u) - r, 0) / max(acc(f) - r, 0) [arXiv 2605.14075, eq. 3], (draws, units); r is chance.

    Parameters
    ----------
    weights
        (draws, samples), rows sum to 1: each row is one weighting of the samples (a bootstrap draw, or the mean).

    High means relevant, 0 means that nothing is lost, and negative means that the model is better without the unit. A
    unit that left the sweep early is compared with the model on the samples that both saw.
    """
    right = hits(columns, context.score)
    without = right[1:]
    paired = np.where(np.isfinite(without), right[:1], np.nan)
    above, above_before = (np.maximum(weighted_mean(weights, x) - context.chance, 0) for x in (without, paired))
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - above / above_before


def undefined(columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
    """Why the metric is undefined here, and keys that rank the units instead: (units, keys), least relevant first.

    That is where the current model's accuracy is not distinguishable from chance (95 %). The unpruned model is then not
    ranked (None); later steps go by what leaves the most right answers, then by the lowest loss.
    """
    right = hits(columns, context.score)
    own = right[0][np.isfinite(right[0])]
    low, high = wilson_interval(own.sum(), len(own))
    if low > context.chance:
        return None
    reason = (
        f"the model scores {own.mean():.3f} (95 % interval {low:.3f} to {high:.3f}, {len(own)} samples), "
        f"not above chance ({context.chance:.3f})"
    )
    if context.removed == 0:
        return reason, None
    keys = np.stack([-np.nanmean(right, axis=1), np.nanmean(columns.values["nll"], axis=1)], axis=1)
    return f"{reason}; ranked by raw accuracy, then by loss", keys[1:]


def posterior(columns: Columns, context: Context, seed: int, draws: int) -> np.ndarray:
    """Draws of the score of each unit, (draws, units), given how many answers stayed right, were lost, won, or neither.

    Half an answer of each kind is added (Jeffreys' prior over the four). A bootstrap of the samples would be certain if
    no answer changed, or if there is one sample; this posterior is not.
    """
    right = hits(columns, context.score)
    there = np.isfinite(right[1:]) & np.isfinite(right[:1])
    base, without = (np.where(there, answers, 0.0) for answers in (right[:1], right[1:]))
    both = (base * without).sum(axis=1)
    lost, won = base.sum(axis=1) - both, without.sum(axis=1) - both
    counts = np.stack([both, lost, won, there.sum(axis=1) - both - lost - won])  # (4, units)
    drawn = np.random.default_rng([seed, 4]).standard_gamma(counts + 0.5, size=(draws, *counts.shape))
    stays, goes, comes, _ = np.moveaxis(drawn / drawn.sum(axis=1, keepdims=True), 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        above, before = (np.maximum(stays + other - context.chance, 0) for other in (comes, goes))
        return np.asarray(1 - above / before)


def interval(columns: Columns, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the score, (units,), from its `posterior`. It never exceeds 1, the largest possible score."""
    draws = posterior(columns, context, context.seed, DRAWS)
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(np.where(np.isnan(draws), -np.inf, draws), [TAIL, 1 - TAIL], axis=0, method="nearest")
    return low, high

"""Accuracy relevance: the share of the accuracy above chance that is lost when a unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, Context, weighted_mean
from lamina.relevance.statistics import wilson_interval

# For who would rank units of a model that is at chance.
REMEDY = (
    "Give calibration '{calibration}' more samples or few-shot examples, choose a task that the model can do, or a "
    "selector whose metric needs no accuracy (perplexity, cosine, angular)."
)


def hits(columns: Columns, score: str) -> np.ndarray:
    """1 where a sample is answered right, (units + 1, samples); length-normalised if `score` is `acc_norm`.

    Text and generated answers have no choices to normalise between, so their plain correctness counts.
    """
    plain, normalised = columns.values["correct"], columns.values["correct_norm"]
    return np.where(np.isnan(normalised), plain, normalised) if score == "acc_norm" else plain


def score(columns: Columns, weights: np.ndarray, context: Context) -> np.ndarray:
    """1 - max(acc(f_-u) - r, 0) / max(acc(f) - r, 0) [arXiv 2605.14075, eq. 3], (draws, units); r is chance.

    Parameters
    ----------
    weights
        (draws, samples), rows sum to 1: each row is one weighting of the samples (a bootstrap draw, or the mean).

    High means relevant, 0 that nothing is lost, negative that the model is better without the unit. A unit that left
    the sweep early is compared with the model on the samples that both saw.
    """
    right = hits(columns, context.score)
    without = right[1:]
    paired = np.where(np.isfinite(without), right[:1], np.nan)
    above, above_before = (np.maximum(weighted_mean(weights, x) - context.chance, 0) for x in (without, paired))
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - above / above_before


def undefined(columns: Columns, context: Context) -> tuple[str, np.ndarray | None] | None:
    """Why the metric says nothing here, and what ranks the units instead: (units, keys), least relevant first.

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


def least_width(columns: Columns, context: Context) -> np.ndarray:
    """Half the width of intervals that a bootstrap leaves empty because no answer changed, (units,): the rule of three.

    If none of n samples changed, the share that would change is at most 3 / n with 95 % confidence.
    """
    above = float(np.nanmean(hits(columns, context.score)[0])) - context.chance
    return 3 / columns.seen[1:] / above if above > 0 else np.zeros(len(columns.units))

"""Accuracy relevance: the share of the accuracy above chance that is lost when a unit is removed."""

import numpy as np

from lamina.relevance.columns import Columns, weighted_mean
from lamina.relevance.statistics import wilson_interval

PASS = "removal"


def hits(columns: Columns, score: str) -> np.ndarray:
    """1 where a sample is answered right, (units + 1, samples); length-normalised if `score` is `acc_norm`.

    Text and generated answers have no choices to normalise between, so their plain correctness counts.
    """
    plain, normalised = columns.values["correct"], columns.values["correct_norm"]
    return np.where(np.isnan(normalised), plain, normalised) if score == "acc_norm" else plain


def undefined(columns: Columns, chance: float, score: str) -> str | None:
    """Why the metric says nothing here: the current model's accuracy is not distinguishable from chance (95 %)."""
    right = hits(columns, score)[0]
    right = right[np.isfinite(right)]
    low, high = wilson_interval(right.sum(), len(right))
    if low > chance:
        return None
    return (
        f"the model scores {right.mean():.3f} (95 % interval {low:.3f} to {high:.3f}, {len(right)} samples), "
        f"not above chance ({chance:.3f})"
    )


def score(columns: Columns, weights: np.ndarray, chance: float, score: str) -> np.ndarray:
    """1 - max(acc(f_-u) - r, 0) / max(acc(f) - r, 0) [arXiv 2605.14075, eq. 3], (draws, units).

    Parameters
    ----------
    weights
        (draws, samples), rows sum to 1: each row is one weighting of the samples (a bootstrap draw, or the mean).
    chance
        r, the accuracy of guessing.

    High means relevant, 0 that nothing is lost, negative that the model is better without the unit. A unit that left
    the sweep early is compared with the model on the samples that both saw.
    """
    right = hits(columns, score)
    without = right[1:]
    paired = np.where(np.isfinite(without), right[:1], np.nan)
    above, above_before = (np.maximum(weighted_mean(weights, x) - chance, 0) for x in (without, paired))
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - above / above_before

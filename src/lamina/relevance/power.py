"""How sure a ranking of units is: how well it would agree with a ranking from as many other samples.

The scores of U units have the variance V, and the noise of the samples is N of it. Reliability is 1 - N / V: the
correlation between these scores and scores from other samples [Lord and Novick 1968]. With k times the samples the
noise is N / k, so a reliability r becomes k r / (1 + (k - 1) r) [Spearman 1910, Brown 1910].
"""

import numpy as np
from scipy.stats import chi2

from lamina.relevance.statistics import TAIL
from lamina.relevance.true_scores import Interval

ENOUGH = 0.8
"""Reliability from which a ranking is called sure."""


def reliability(draws: np.ndarray, n_samples: int) -> Interval | None:
    """Reliability of scores (1 + draws, units), whose first row is the estimate; None for fewer than three units.

    The interval assumes that units are drawn from a normal distribution, and that the noise is known. Its ends are at
    least 0.
    """
    count = draws.shape[1]
    seen = float(draws[0].var(ddof=1)) if count > 2 else 0.0
    if seen <= 1e-24 or n_samples < 2:
        return None
    noise = draws[1:] - draws[0]
    # What all units share moves no rank.
    noise = noise - noise.mean(axis=1, keepdims=True)
    explained = float((noise**2).mean()) * n_samples / (n_samples - 1) * count / (count - 1) / seen
    ends = chi2.ppf([1 - TAIL, TAIL], count - 1) / (count - 1)
    value, low, high = (max(0.0, 1 - explained * wide) for wide in (1.0, *ends))
    return value, low, high


def samples_for(wanted: float, reliability: float, n_samples: int) -> float:
    """The number of samples with the reliability `wanted`, if `n_samples` have `reliability`; infinite if that is 0."""
    if reliability <= 0:
        return float("inf")
    return n_samples * wanted * (1 - reliability) / (reliability * (1 - wanted)) if reliability < 1 else 1.0

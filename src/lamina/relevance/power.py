"""How sure a ranking of units is: how well it would agree with a ranking from as many other samples."""

import numpy as np

from lamina.relevance.statistics import TAIL
from lamina.relevance.true_scores import Interval, correlation, ranks

ENOUGH = 0.8
"""Reliability from which a ranking is called sure."""
TRUTHS, PAIRS = 100, 20  # true scores that are drawn in each way, and pairs of rankings from each


def reliability(draws: np.ndarray, n_samples: int) -> Interval | None:
    """Spearman's correlation of two rankings, each from as many other samples; None for fewer than three units.

    `draws` are scores of shape (1 + draws, units), whose first row is the estimate. True scores are drawn that they may
    come from, and two noises of the draws make two rankings of each. The correlation of the scores themselves would be
    that of a few units far from the others, and say nothing of the places of these. The interval holds what `shrunk`
    and `deconvolved` true scores give.
    """
    count = draws.shape[1]
    if n_samples < 2 or count < 3 or float(draws[0].var()) <= 1e-24:
        return None
    noise = draws[1:] - draws[0]
    # What all units share moves no rank.
    noise = np.sqrt(n_samples / (n_samples - 1)) * (noise - noise.mean(axis=1, keepdims=True))
    scores, generator = draws[0] - draws[0].mean(), np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return noise[generator.integers(0, len(noise), shape)]

    found = []
    for truths in (shrunk(scores, noise, generator), deconvolved(scores, noise, generator)):
        one, other = (ranks(truths[:, None] + drawn(TRUTHS, PAIRS)) for _ in range(2))
        found.append(np.nan_to_num(correlation(one, other)).mean(axis=1))
    low, high = np.quantile(found, [TAIL, 1 - TAIL], axis=1)
    value, low, high = np.maximum(0, [np.median(found), low.min(), high.max()])
    return float(value), float(low), float(high)


def shrunk(scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """True scores (TRUTHS, units) as if drawn from a normal distribution: the share of the variance of `scores` that is
    no noise is 1 - N / V [Lord and Novick 1968], which is uncertain as a variance of so few units is.
    """
    count = len(scores)
    explained = float((noise**2).mean()) * count / (scores**2).sum()
    left = np.maximum(0, 1 - explained * generator.chisquare(count - 1, TRUTHS) / (count - 1))[:, None]
    return np.asarray(left * scores + np.sqrt(left) * noise[generator.integers(0, len(noise), TRUTHS)])


def deconvolved(scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """True scores (TRUTHS, units) from the likeliest distribution on the measured ones [Kiefer and Wolfowitz 1956], by
    expectation maximisation, under random weights of the units [Rubin 1981].
    """
    errors = np.sqrt((noise**2).mean(axis=0))
    errors = np.maximum(errors, 1e-3 * max(errors.max(), np.ptp(scores) / len(scores)))[:, None]
    likelihood = np.exp(-0.5 * ((scores[:, None] - scores) / errors) ** 2) / errors  # (units, places)
    weights = generator.dirichlet(np.ones(len(scores)), TRUTHS)[:, :, None]
    places = np.full((TRUTHS, 1, len(scores)), 1 / len(scores))
    for _ in range(40):
        chances = likelihood * places
        chances /= chances.sum(axis=2, keepdims=True)
        places = (weights * chances).sum(axis=1, keepdims=True)
    at = (generator.random((TRUTHS, len(scores), 1)) < chances.cumsum(axis=2)).argmax(axis=2)
    return np.asarray(scores[at])


def samples_for(wanted: float, reliability: float, n_samples: int) -> float:
    """The number of samples with the reliability `wanted`, if `n_samples` have `reliability`; infinite if that is 0.

    With k times the samples, a reliability r becomes k r / (1 + (k - 1) r) [Spearman 1910, Brown 1910].
    """
    if reliability <= 0:
        return float("inf")
    return n_samples * wanted * (1 - reliability) / (reliability * (1 - wanted)) if reliability < 1 else 1.0

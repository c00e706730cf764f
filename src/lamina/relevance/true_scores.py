"""Correlations and variances of true scores, which infinitely many samples would give, from the scores of some samples.

Noise lowers a correlation and raises a variance. A bootstrap draw holds it twice, so that the percentiles of drawn
correlations lie too low. What it adds to sums of squares and of products, in the mean, is how far the draws' sums are
above the estimate's, and that is taken off. Where the noise is as large as the differences between units, intervals
are wide.

How sure a ranking is, its reliability, is how well it would agree with a ranking from as many other samples.
"""

import numpy as np
from scipy.stats import rankdata

from lamina.relevance.statistics import TAIL

Interval = tuple[float, float, float]
"""Estimate, low end, high end."""

# Correlations that are tried, as steps of Fisher's z, with both ends; and draws of each trial.
TRIED = np.concatenate([[-1], np.tanh(np.linspace(-3, 3, 21)), [1]])
DRAWS = 300
# Sizes of the differences between tasks that are tried, in units of those seen.
SIZES = np.concatenate([[0], np.geomspace(0.02, 30, 60)])
LEAST = 0.02  # a variance is at least so much of what was seen, however large the noise
TRUTHS, PAIRS = 100, 20  # true scores that are drawn in each way, and pairs of rankings from each
ENOUGH = 0.8
"""Reliability from which a ranking is called sure."""


def correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's correlation over the last axis; NaN where one side is constant."""
    one, other = (scores - scores.mean(axis=-1, keepdims=True) for scores in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        coefficient: np.ndarray = (one * other).sum(axis=-1) / np.sqrt(
            (one**2).sum(axis=-1) * (other**2).sum(axis=-1)
        )
    return coefficient


def true_correlation(
    first: np.ndarray, second: np.ndarray, n_samples: int, ranked: bool = False
) -> Interval | None:
    """Pearson's correlation of the true scores, or Spearman's if `ranked`; None where one side is constant.

    `first` and `second` are paired draws, (1 + draws, pairs), from `n_samples` samples; the first row is the estimate.
    Many correlations are tried. For each, true scores are constructed that have this correlation and the variances
    without noise, and are otherwise as close as possible to the measured scores. The noise of the draws is added to
    them. The estimate is the correlation whose draws have the measured correlation as their median. The interval holds
    the correlations for which the measured one is not in the extreme 5 % of the draws. The true order of two close
    units is unknown, so the interval of Spearman's leaves out the extreme 2.5 % only. Of a few units, the order of two
    moves it by a step; so it also holds the middle 95 % of the correlations after the noise is taken off once more, at
    random. With that it is rather too wide than too narrow.
    """
    means = [scores[0] - scores[0].mean() for scores in (first, second)]
    # Twelve digits count, as in ranks.
    if any(
        np.ptp(scores[0]) <= 1e-12 * max(np.abs(scores[0]).max(), 1) for scores in (first, second)
    ):
        return None
    drawn_alike = correlation(first, second)
    # One and the same scores. A draw without any difference between units has no correlation.
    if np.allclose(drawn_alike[~np.isnan(drawn_alike)], 1, atol=1e-12):
        return 1.0, 1.0, 1.0
    noise = [
        np.sqrt(n_samples / max(n_samples - 1, 1)) * (s[1 : DRAWS + 1] - s[0])
        for s in (first, second)
    ]
    sizes = [
        np.sqrt(_without_noise((mean**2).sum(), each))
        for mean, each in zip(means, noise, strict=True)
    ]
    one, other = (mean / np.sqrt((mean**2).sum()) for mean in means)
    along, across = _direction(one + other, one - other), _direction(one - other, one + other)

    def measure(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return correlation(ranks(one), ranks(other)) if ranked else correlation(one, other)

    truths, curves = [], []
    for tried in TRIED:
        same, apart = np.sqrt((1 + tried) / 2) * along, np.sqrt((1 - tried) / 2) * across
        laid = sizes[0] * (same + apart), sizes[1] * (same - apart)
        truths.append(float(measure(*laid)) if ranked else tried)
        drawn = measure(laid[0] + noise[0], laid[1] + noise[1])
        tail = 100 * TAIL / (2 if ranked else 1)
        curves.append(np.nanpercentile(drawn, [50, 100 - tail, tail]))
    rising = np.maximum.accumulate(np.array(curves), axis=0).T
    measured = float(measure(first[0], second[0]))
    point, low, high = (
        float(np.interp(measured, curve, np.maximum.accumulate(truths))) for curve in rising
    )
    if ranked:
        ends = np.nanpercentile(
            measure(first[0] - noise[0], second[0] - noise[1]), [100 * TAIL, 100 - 100 * TAIL]
        )
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return point, low, high


def true_variance_ratio(
    first: np.ndarray, second: np.ndarray, n_samples: int
) -> tuple[Interval | None, np.ndarray, np.ndarray]:
    """Ratio of the variances across tasks of standardised true scores, first metric by second, and both variances.

    The variances of the ratio are means over units. Both metrics are paired draws of shape (tasks, 1 + draws, units).
    The ratio is None where a metric does not vary across tasks. The variances by unit, (units,) each, are 0 where they
    are only noise.

    For each metric, many sizes of the differences between tasks are tried. Under the noise of each draw, one size gives
    the measured variance. The true variances of these sizes, draw by draw, give the distribution of the ratio.
    """
    variances = [
        _variances(scores, np.sqrt(n_samples / max(n_samples - 1, 1))) for scores in (first, second)
    ]
    (own, spread), (others, other_spread) = variances
    if own is None or others is None:
        return None, spread, other_spread
    low, point, high = np.exp(np.percentile(own - others, [100 * TAIL, 50, 100 - 100 * TAIL]))
    return (float(point), float(low), float(high)), spread, other_spread


def _variances(scores: np.ndarray, widening: float) -> tuple[np.ndarray | None, np.ndarray]:
    """Logarithms of the share of variance that is within units, one per draw, and the share of each unit, (units,).

    The logarithms are None if units vary across tasks only by rounding.
    """
    estimate, noise = scores[:, 0], widening * (scores[:, 1:] - scores[:, :1])
    units = estimate.mean(axis=0)
    inside, between = estimate - units, units - units.mean()
    seen, apart = (inside**2).mean(), (between**2).mean()
    # What noise adds to both, in the mean over draws and in each, and what it has in common with what was measured.
    noise_between = noise.mean(axis=0)
    noise_inside = noise - noise_between
    noise_between = noise_between - noise_between.mean(axis=-1, keepdims=True)
    left = (inside**2).mean(axis=0) - (noise_inside**2).mean(axis=(0, 1))
    added = (noise_between**2).mean(axis=-1)
    true_apart = max(apart - added.mean(), LEAST * apart)
    total = max(left.mean(), LEAST * seen) + true_apart
    shares = np.maximum(left, 0) / total if total > 0 else left
    if seen <= 1e-12 * (seen + apart):
        return None, shares
    shrunk = np.sqrt(true_apart / apart) if apart > 0 else 0.0
    within = SIZES[:, None] ** 2 * seen + (noise_inside**2).mean(axis=(0, 2))
    within = within + 2 * SIZES[:, None] * (inside[:, None] * noise_inside).mean(axis=(0, 2))
    others = true_apart + 2 * shrunk * (between * noise_between).mean(axis=-1) + added
    with np.errstate(divide="ignore"):
        measured = np.maximum.accumulate(np.log(within / (within + others)), axis=0)
    true_within = np.maximum(SIZES**2, LEAST) * seen
    truths = np.log(true_within / (true_within + true_apart))
    return np.array(
        [np.interp(np.log(seen / (seen + apart)), curve, truths) for curve in measured.T]
    ), shares


def _without_noise(square: float, noise: np.ndarray) -> float:
    """A sum of squares less the mean sum that noise adds to it."""
    added = ((noise - noise.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1).mean()
    return float(max(square - added, LEAST * square))


def _direction(vector: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The vector at length 1; if it is nearly 0, another vector with mean 0 that is orthogonal to `across`."""
    if np.sqrt((vector**2).sum()) <= 1e-9:
        rising = np.arange(len(vector)) - (len(vector) - 1) / 2
        vector = rising - (rising @ across) / (across @ across) * across
        if np.sqrt((vector**2).sum()) <= 1e-9:  # `across` rises evenly itself
            vector = rising**2 - (rising**2).mean()
    unit: np.ndarray = vector / np.sqrt((vector**2).sum())
    return unit


def ranks(scores: np.ndarray) -> np.ndarray:
    """Places along the last axis, from 1. Equal scores share their mean place; only twelve digits count."""
    return np.asarray(rankdata(scores.round(12), axis=-1))


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
    left = np.maximum(0, 1 - explained * generator.chisquare(count - 1, TRUTHS) / (count - 1))[
        :, None
    ]
    return np.asarray(
        left * scores + np.sqrt(left) * noise[generator.integers(0, len(noise), TRUTHS)]
    )


def deconvolved(
    scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """True scores (TRUTHS, units) from the likeliest distribution on the measured ones [Kiefer and Wolfowitz 1956], by
    expectation maximisation, under random weights of the units [Rubin 1981].
    """
    errors = np.sqrt((noise**2).mean(axis=0))
    errors = np.maximum(errors, 1e-3 * max(errors.max(), np.ptp(scores) / len(scores)))[:, None]
    likelihood = (
        np.exp(-0.5 * ((scores[:, None] - scores) / errors) ** 2) / errors
    )  # (units, places)
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
    return (
        n_samples * wanted * (1 - reliability) / (reliability * (1 - wanted))
        if reliability < 1
        else 1.0
    )

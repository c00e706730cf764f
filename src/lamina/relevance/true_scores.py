"""Correlations and variances of true scores, which infinitely many samples would give.

They are estimated from the scores of some samples.

Noise lowers a correlation and raises a variance. A bootstrap draw contains it twice, so the
percentiles of drawn correlations are too low. The noise adds to sums of squares and of products; on
average it adds as much as the draws' sums exceed the estimate's, and that is subtracted. Where the
noise is as large as the differences between units, intervals are wide.

The reliability of a ranking is its expected agreement with a ranking from as many other samples.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from lamina.relevance.statistics import TAIL

Interval = tuple[float, float, float]
"""Estimate, low end, high end."""

TRIED_CORRELATIONS = np.concatenate([[-1], np.tanh(np.linspace(-3, 3, 21)), [1]])
"""True correlations that are tried: equal steps of Fisher's z, and both ends."""

N_TRIAL_DRAWS = 300
"""Bootstrap draws whose noise is added to the true scores of each tried correlation."""

TRIED_SIZES = np.concatenate([[0], np.geomspace(0.02, 30, 60)])
"""Sizes of the differences between tasks that are tried, as multiples of the measured size."""

LEAST_SHARE = 0.02
"""A true variance is at least this share of the measured variance, however large the noise."""

N_TRUTHS = 100
"""Sets of true scores that each of the two methods draws for a reliability."""

N_PAIRS = 20
"""Pairs of rankings that are drawn from each set of true scores."""

N_MAXIMISATIONS = 40
"""Iterations of expectation maximisation."""

ROUNDING = 1e-12
"""Smaller relative differences may come from rounding."""

SUFFICIENT_RELIABILITY = 0.8
"""A ranking with at least this reliability is called reliable."""


def pearson_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's correlation over the last axis; NaN where one side is constant."""
    first_centred = first - first.mean(axis=-1, keepdims=True)
    second_centred = second - second.mean(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        products = (first_centred * second_centred).sum(axis=-1)
        squares = (first_centred**2).sum(axis=-1) * (second_centred**2).sum(axis=-1)
        coefficient: np.ndarray = products / np.sqrt(squares)
    return coefficient


def rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Spearman's correlation over the last axis; NaN where one side is constant."""
    return pearson_correlation(rank_scores(first), rank_scores(second))


def rank_scores(scores: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, from 1.

    Equal scores share their mean rank. Scores are compared to twelve digits.
    """
    return np.asarray(rankdata(scores.round(12), axis=-1))


def true_correlation(
    first: np.ndarray, second: np.ndarray, n_samples: int, ranked: bool = False
) -> Interval | None:
    """Pearson's correlation of the true scores, or Spearman's if `ranked`.

    None where one side is constant.

    first, second: Paired draws, (1 + draws, pairs), from `n_samples` samples; the first row is the
        estimate.

    Many correlations are tried. For each, true scores are constructed that have this correlation
    and the variances without noise, and are otherwise as close as possible to the measured scores.
    The noise of the draws is added to them. The estimate is the correlation whose draws have the
    measured correlation as their median. The interval contains the correlations for which the
    measured one is not in the extreme 5 % of the draws.

    For Spearman's, the interval leaves out only the extreme 2.5 %, because the true order of two
    close units is unknown. Among few units, swapping two moves it by a step. So its interval also
    contains the middle 95 % of the correlations after the noise is subtracted once more, at random.
    This makes it too wide rather than too narrow.
    """
    if _is_constant(first[0]) or _is_constant(second[0]):
        return None
    if _are_identical(first, second):
        return 1.0, 1.0, 1.0

    widening_factor = np.sqrt(n_samples / max(n_samples - 1, 1))
    first_noise = widening_factor * (first[1 : N_TRIAL_DRAWS + 1] - first[0])
    second_noise = widening_factor * (second[1 : N_TRIAL_DRAWS + 1] - second[0])
    construction = _ScoreConstruction.around(first[0], second[0], first_noise, second_noise)
    measure = rank_correlation if ranked else pearson_correlation
    tail_percent = 100 * TAIL / (2 if ranked else 1)

    true_values: list[float] = []
    drawn_quantiles: list[np.ndarray] = []
    for tried_correlation in TRIED_CORRELATIONS:
        first_true, second_true = construction.with_correlation(tried_correlation)
        true_values.append(float(measure(first_true, second_true)) if ranked else tried_correlation)
        drawn_correlations = measure(first_true + first_noise, second_true + second_noise)
        drawn_quantiles.append(
            np.nanpercentile(drawn_correlations, [50, 100 - tail_percent, tail_percent])
        )

    measured_value = float(measure(first[0], second[0]))
    rising_values = np.maximum.accumulate(true_values)
    rising_quantiles = np.maximum.accumulate(np.array(drawn_quantiles), axis=0).T
    estimated_value, ci_low, ci_high = (
        float(np.interp(measured_value, quantiles, rising_values)) for quantiles in rising_quantiles
    )
    if ranked:
        without_noise = measure(first[0] - first_noise, second[0] - second_noise)
        noise_free_ends = np.nanpercentile(without_noise, [100 * TAIL, 100 - 100 * TAIL])
        ci_low = min(ci_low, float(noise_free_ends[0]))
        ci_high = max(ci_high, float(noise_free_ends[1]))
    return estimated_value, ci_low, ci_high


def _is_constant(scores: np.ndarray) -> bool:
    """Whether all scores are equal up to rounding."""
    largest = max(np.abs(scores).max(), 1)
    return bool(np.ptp(scores) <= ROUNDING * largest)


def _are_identical(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether both sides are the same scores up to scale: every draw correlates perfectly."""
    drawn_correlations = pearson_correlation(first, second)
    # A draw without any difference between units has no correlation.
    has_correlation = ~np.isnan(drawn_correlations)
    return np.allclose(drawn_correlations[has_correlation], 1, atol=ROUNDING)


class _ScoreConstruction(NamedTuple):
    """True scores with any correlation, as close as possible to two sides of measured ones."""

    first_size: float
    """Norm of the first side's centred true scores."""

    second_size: float

    along: np.ndarray
    """Direction that both sides share, a vector of norm 1, (pairs,)."""

    across: np.ndarray
    """Direction in which they are opposite, of norm 1 and orthogonal to `along`, (pairs,)."""

    @classmethod
    def around(
        cls,
        first: np.ndarray,
        second: np.ndarray,
        first_noise: np.ndarray,
        second_noise: np.ndarray,
    ) -> "_ScoreConstruction":
        """Around measured scores, (pairs,), and the noise of their draws, (draws, pairs)."""
        first_centred = first - first.mean()
        second_centred = second - second.mean()
        first_square = (first_centred**2).sum()
        second_square = (second_centred**2).sum()
        first_unit = first_centred / np.sqrt(first_square)
        second_unit = second_centred / np.sqrt(second_square)
        total = first_unit + second_unit
        difference = first_unit - second_unit
        return cls(
            np.sqrt(_without_noise(first_square, first_noise)),
            np.sqrt(_without_noise(second_square, second_noise)),
            _direction(total, difference),
            _direction(difference, total),
        )

    def with_correlation(self, tried: float) -> tuple[np.ndarray, np.ndarray]:
        """Centred true scores of both sides, (pairs,) each, with Pearson's correlation `tried`."""
        shared_part = np.sqrt((1 + tried) / 2) * self.along
        opposite_part = np.sqrt((1 - tried) / 2) * self.across
        return self.first_size * (shared_part + opposite_part), self.second_size * (
            shared_part - opposite_part
        )


def _without_noise(square: float, noise: np.ndarray) -> float:
    """A sum of squares over the last axis minus what noise, (draws, pairs), adds on average."""
    centred_noise = noise - noise.mean(axis=-1, keepdims=True)
    noise_square = (centred_noise**2).sum(axis=-1).mean()
    return float(max(square - noise_square, LEAST_SHARE * square))


def _direction(vector: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The vector scaled to length 1.

    If it is nearly 0, another vector with mean 0 that is orthogonal to `across`.
    """
    if np.sqrt((vector**2).sum()) <= 1e-9:
        rising = np.arange(len(vector)) - (len(vector) - 1) / 2
        vector = rising - (rising @ across) / (across @ across) * across
        if np.sqrt((vector**2).sum()) <= 1e-9:  # `across` itself rises evenly
            vector = rising**2 - (rising**2).mean()
    unit_vector: np.ndarray = vector / np.sqrt((vector**2).sum())
    return unit_vector


def true_variance_ratio(
    first: np.ndarray, second: np.ndarray, n_samples: int
) -> tuple[Interval | None, np.ndarray, np.ndarray]:
    """Ratio of variances across tasks of standardised true scores, and both variances.

    The ratio is that of the first metric to the second.

    first, second: Paired draws of both metrics, (tasks, 1 + draws, units).

    The ratio compares means over units. It is None where a metric does not vary across tasks. The
    variances by unit, (units,) each, are 0 where they are only noise.

    For each metric, many sizes of the differences between tasks are tried. Under the noise of each
    draw, one size reproduces the measured variance. The true variances at these sizes, draw by
    draw, give the distribution of the ratio.
    """
    widening_factor = np.sqrt(n_samples / max(n_samples - 1, 1))
    first_log_shares, first_variances = _variance_shares(first, widening_factor)
    second_log_shares, second_variances = _variance_shares(second, widening_factor)
    if first_log_shares is None or second_log_shares is None:
        return None, first_variances, second_variances
    percentiles = [100 * TAIL, 50, 100 - 100 * TAIL]
    log_ratios = first_log_shares - second_log_shares
    ci_low, estimated_ratio, ci_high = np.exp(np.percentile(log_ratios, percentiles))
    return (
        (float(estimated_ratio), float(ci_low), float(ci_high)),
        first_variances,
        second_variances,
    )


def _variance_shares(scores: np.ndarray, widening: float) -> tuple[np.ndarray | None, np.ndarray]:
    """Share of the variance of true scores that is within units, across tasks.

    scores: (tasks, 1 + draws, units); the noise of the draws counts `widening` times.

    Returns the logarithm of the share under the noise of each draw, (draws,), and the part of each
    unit, (units,). The logarithms are None if units vary across tasks only by rounding.
    """
    estimated_scores = scores[:, 0]
    unit_means = estimated_scores.mean(axis=0)
    within_units = estimated_scores - unit_means
    between_units = unit_means - unit_means.mean()
    measured_within = (within_units**2).mean()
    measured_between = (between_units**2).mean()

    draw_noise = widening * (scores[:, 1:] - scores[:, :1])
    noise_means = draw_noise.mean(axis=0)
    noise_within = draw_noise - noise_means
    noise_between = noise_means - noise_means.mean(axis=-1, keepdims=True)
    added_between = (noise_between**2).mean(axis=-1).mean()

    true_within = (within_units**2).mean(axis=0) - (noise_within**2).mean(axis=(0, 1))
    true_between = max(measured_between - added_between, LEAST_SHARE * measured_between)
    total_variance = max(true_within.mean(), LEAST_SHARE * measured_within) + true_between
    unit_shares = np.maximum(true_within, 0) / total_variance if total_variance > 0 else true_within
    if measured_within <= ROUNDING * (measured_within + measured_between):
        return None, unit_shares

    log_shares = _drawn_log_shares(
        within_units, between_units, noise_within, noise_between, true_between
    )
    return log_shares, unit_shares


def _drawn_log_shares(
    within_units: np.ndarray,
    between_units: np.ndarray,
    noise_within: np.ndarray,
    noise_between: np.ndarray,
    true_between: float,
) -> np.ndarray:
    """Logarithm of the true share within units, under the noise of each draw, (draws,).

    within_units: Deviations of the scores of each task from the units' means, (tasks, units).
    between_units: Deviations of the units' means, (units,).
    noise_within, noise_between: The same of the draws' noise, (tasks, draws, units) and (draws,
        units).
    true_between: Variance between units without noise.

    Many sizes of the differences within units are tried. The chosen one gives the measured share
    once the draw's noise is added: squares, noise, and twice the products.
    """
    measured_within = (within_units**2).mean()
    measured_between = (between_units**2).mean()
    tried_sizes = TRIED_SIZES[:, None]
    products_within = (within_units[:, None] * noise_within).mean(axis=(0, 2))
    drawn_within = tried_sizes**2 * measured_within + (noise_within**2).mean(axis=(0, 2))
    drawn_within = drawn_within + 2 * tried_sizes * products_within

    shrinkage = np.sqrt(true_between / measured_between) if measured_between > 0 else 0.0
    products_between = (between_units * noise_between).mean(axis=-1)
    added_between = (noise_between**2).mean(axis=-1)
    drawn_between = true_between + 2 * shrinkage * products_between + added_between
    with np.errstate(divide="ignore"):
        drawn_shares = np.log(drawn_within / (drawn_within + drawn_between))
    rising_shares = np.maximum.accumulate(drawn_shares, axis=0)

    tried_within = np.maximum(TRIED_SIZES**2, LEAST_SHARE) * measured_within
    tried_shares = np.log(tried_within / (tried_within + true_between))
    measured_share = np.log(measured_within / (measured_within + measured_between))
    log_shares = [np.interp(measured_share, shares, tried_shares) for shares in rising_shares.T]
    return np.array(log_shares)


def ranking_reliability(draws: np.ndarray, n_samples: int) -> Interval | None:
    """Spearman's correlation of two rankings, each from as many other samples.

    None for fewer than three units.

    draws: Scores, (1 + draws, units), from `n_samples` samples; the first row is the estimate.

    Possible true scores are drawn. For each set of them, the noises of two draws make two rankings.
    The correlation of the scores themselves would mostly reflect a few outlying units and say
    nothing about the ranks of the others. The interval covers both `shrink_scores` and
    `deconvolve_scores`.
    """
    n_units = draws.shape[1]
    if n_samples < 2 or n_units < 3 or float(draws[0].var()) <= 1e-24:
        return None
    scores = draws[0] - draws[0].mean()
    noise = draws[1:] - draws[0]
    # Noise that all units share moves no rank.
    noise = noise - noise.mean(axis=1, keepdims=True)
    noise = np.sqrt(n_samples / (n_samples - 1)) * noise

    generator = np.random.default_rng(0)
    # Both methods use one generator, so all true scores are drawn before the rankings.
    shrunk_scores = shrink_scores(scores, noise, generator)
    deconvolved_scores = deconvolve_scores(scores, noise, generator)
    agreements = np.array(
        [
            _ranking_agreements(shrunk_scores, noise, generator),
            _ranking_agreements(deconvolved_scores, noise, generator),
        ]
    )
    low, high = np.quantile(agreements, [TAIL, 1 - TAIL], axis=1)
    estimate, low, high = np.maximum(0, [np.median(agreements), low.min(), high.max()])
    return float(estimate), float(low), float(high)


def _ranking_agreements(
    true_scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Mean correlation of two rankings of each set of true scores under noise, (N_TRUTHS,).

    The true scores are (N_TRUTHS, units).
    """
    shape = (N_TRUTHS, N_PAIRS)
    first_noise = noise[generator.integers(0, len(noise), shape)]
    second_noise = noise[generator.integers(0, len(noise), shape)]
    first_scores = true_scores[:, None] + first_noise
    second_scores = true_scores[:, None] + second_noise
    correlations = np.nan_to_num(rank_correlation(first_scores, second_scores))
    means: np.ndarray = correlations.mean(axis=1)
    return means


def shrink_scores(
    scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """True scores, (N_TRUTHS, units), as if drawn from a normal distribution.

    scores, noise: Centred scores, (units,), and the noise of draws, (draws, units).

    The share of the variance of `scores` that is not noise is 1 - N / V [Lord and Novick 1968]. It
    is as uncertain as the variance of this number of units.
    """
    n_units = len(scores)
    noise_share = float((noise**2).mean()) * n_units / (scores**2).sum()
    chi_squares = generator.chisquare(n_units - 1, N_TRUTHS)
    true_share = np.maximum(0, 1 - noise_share * chi_squares / (n_units - 1))[:, None]
    drawn_noise = noise[generator.integers(0, len(noise), N_TRUTHS)]
    return np.asarray(true_share * scores + np.sqrt(true_share) * drawn_noise)


def deconvolve_scores(
    scores: np.ndarray, noise: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """True scores, (N_TRUTHS, units), from their likeliest distribution.

    Its support is the measured scores [Kiefer and Wolfowitz 1956]. It is found by expectation
    maximisation, under random weights of the units [Rubin 1981].

    scores, noise: Centred scores, (units,), and the noise of draws, (draws, units).
    """
    n_units = len(scores)
    errors = np.sqrt((noise**2).mean(axis=0))
    smallest_error = 1e-3 * max(errors.max(), np.ptp(scores) / n_units)
    errors = np.maximum(errors, smallest_error)[:, None]
    deviations = (scores[:, None] - scores) / errors
    likelihoods = np.exp(-0.5 * deviations**2) / errors  # (units, scores)

    unit_weights = generator.dirichlet(np.ones(n_units), N_TRUTHS)[:, :, None]
    prior = np.full((N_TRUTHS, 1, n_units), 1 / n_units)
    for _ in range(N_MAXIMISATIONS):
        posterior = likelihoods * prior
        posterior /= posterior.sum(axis=2, keepdims=True)
        prior = (unit_weights * posterior).sum(axis=1, keepdims=True)

    uniform = generator.random((N_TRUTHS, n_units, 1))
    score_indices = (uniform < posterior.cumsum(axis=2)).argmax(axis=2)
    return np.asarray(scores[score_indices])


def samples_for(wanted: float, reliability: float, n_samples: int) -> float:
    """The number of samples with reliability `wanted`, given the `reliability` of `n_samples`.

    Infinite if `reliability` is 0.

    With k times the samples, a reliability r becomes k r / (1 + (k - 1) r) [Spearman 1910, Brown
    1910].
    """
    if reliability <= 0:
        return float("inf")
    if reliability >= 1:
        return 1.0
    return n_samples * wanted * (1 - reliability) / (reliability * (1 - wanted))

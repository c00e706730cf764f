"""Error bars: bootstrap weights, and 95 % intervals of means, ratios and proportions.

Every interval of the package is defined here once, except those of true scores (`true_scores`) and
of counted answers (`metrics.answers.Accuracy`). How often each interval contains the truth:
reports/coverage.md.
"""

from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtr, stdtrit

N_DRAWS = 1000
"""Bootstrap draws: the ends of a 95 % interval are at the 25th and 975th value, enough for two
digits.
"""

TAIL = 0.025
"""Probability outside each end of a 95 % interval."""

Z95 = 1.959964
"""Half the width of the 95 % interval of a normal variable, in standard errors."""

MIN_SAMPLES = 50
"""A mean of fewer samples has no interval: a loss on a tenth of all documents may be missing from
them.
"""

IntervalEnds = tuple[np.ndarray, np.ndarray]
"""Low and high ends of intervals, one number per unit each."""


class EstimateRow(TypedDict):
    """Columns of table `diagnoses` that an estimate fills.

    The ends are None if there is one document.
    """

    value: float
    ci_low: float | None
    ci_high: float | None
    n_samples: int


def bootstrap_weights(n_samples: int, seed: int, n_draws: int = N_DRAWS) -> np.ndarray:
    """Weights of a paired bootstrap over samples, (1 + draws, n_samples).

    The first row is the plain mean.

    The same row weighs every unit, so that effects common to all units cancel in their differences.
    """
    generator = np.random.default_rng(seed)
    uniform = np.full(n_samples, 1 / n_samples)
    draw_counts = generator.multinomial(n_samples, uniform, size=n_draws)
    return np.vstack([np.ones(n_samples), draw_counts]) / n_samples


def document_weights(documents: ArrayLike, seed: int) -> np.ndarray:
    """`bootstrap_weights` over documents, which samples may share, (1 + draws, samples).

    documents: The number of each sample's document, from 0, (samples,).
    """
    document_numbers = np.asarray(documents)
    n_documents = 1 + int(document_numbers.max())
    weights = bootstrap_weights(n_documents, seed)[:, document_numbers]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def percentile_tail(n_samples: int) -> float:
    """Share of bootstrap draws beyond either end of a 95 % interval of a mean [Hesterberg 2015].

    The spread of drawn means is too small by √((n - 1) / n), and Student's t is wider than the
    normal distribution: 0.016 for 20 samples.
    """
    if n_samples < 2:
        return 0.0
    widening_factor = np.sqrt(n_samples / (n_samples - 1))
    return float(ndtr(widening_factor * stdtrit(n_samples - 1, TAIL)))


def percentile_interval(draws: np.ndarray, n_samples: int | None = None) -> IntervalEnds:
    """Ends of the 95 % percentile interval over the first axis of `draws`; NaN for one sample.

    With `n_samples`, the draws are means of that many samples, and `percentile_tail` widens the
    interval.
    """
    if n_samples == 1:
        unknown_ends = np.full(draws.shape[1:], np.nan)
        return unknown_ends, unknown_ends.copy()
    tail_percent = 100 * (percentile_tail(n_samples) if n_samples else TAIL)
    ci_low, ci_high = np.nanpercentile(draws, [tail_percent, 100 - tail_percent], axis=0)
    return ci_low, ci_high


def studentised_interval(
    draws: np.ndarray, standard_errors: np.ndarray, skewness: np.ndarray, n_samples: np.ndarray
) -> IntervalEnds:
    """Ends of the 95 % bootstrap-t interval, (units,) each [Efron and Tibshirani 1993, ch. 12.5].

    draws, standard_errors: Bootstrap draws and their standard errors, (1 + draws, units); the first
        row is the estimate.
    skewness: That of each mean, (units,), which `columns.mean_skewness` estimates.
    n_samples: The number of samples of each unit, (units,). Units with fewer than `MIN_SAMPLES` get
        NaN.

    The largest losses are the rarest, and the samples may contain none. So the interval reaches
    further on the side of the long tail, the more skewed the samples are (`skewed_tail`).
    """
    deviations = _studentised_deviations(draws, standard_errors)
    ci_low = np.full(len(n_samples), np.nan)
    ci_high = np.full(len(n_samples), np.nan)

    for unit in np.flatnonzero(n_samples >= MIN_SAMPLES):
        # A draw without the rare large losses lies too low. Its deviation shows how far the mean
        # may be above the estimate.
        lower_tail = 100 * skewed_tail(-skewness[unit])
        upper_tail = 100 * skewed_tail(skewness[unit])
        extreme_deviations = np.nanpercentile(deviations[:, unit], [100 - lower_tail, upper_tail])
        ci_low[unit], ci_high[unit] = draws[0, unit] - extreme_deviations * standard_errors[0, unit]
    return ci_low, ci_high


def skewed_tail(skewness: float) -> float:
    """Share of bootstrap draws that a 95 % interval leaves out on the side of the long tail.

    It is `TAIL` without skewness, and also on the other side, where the skewness counts as
    negative. A tenth of it at a skewness of .3 was found by experiment with exponential, lognormal
    and rare losses: see reports/coverage.md.
    """
    return float(np.interp(skewness, [0.1, 0.3], [TAIL, TAIL / 10]))


def _studentised_deviations(draws: np.ndarray, standard_errors: np.ndarray) -> np.ndarray:
    """Deviation of each draw from the estimate in its own standard errors, (draws, units).

    NaN without an error.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = (draws[1:] - draws[0]) / standard_errors[1:]

    # If all samples of a draw are equal, its error is only rounding.
    has_error = standard_errors[1:] > 1e-6 * standard_errors[0]
    deviations = np.where(np.isfinite(deviations) & has_error, deviations, np.nan)

    all_samples_alike = np.isnan(deviations).all(axis=0)
    return np.where(all_samples_alike, 0.0, deviations)


def jeffreys_interval(n_successes: np.ndarray, n_trials: np.ndarray) -> IntervalEnds:
    """95 % interval of proportions by Jeffreys [Brown, Cai and DasGupta 2001].

    It has a width even for 0 of n and n of n.
    """
    alpha = n_successes + 0.5
    beta = n_trials - n_successes + 0.5
    ci_low = betaincinv(alpha, beta, TAIL)
    ci_high = betaincinv(alpha, beta, 1 - TAIL)
    return np.where(n_successes <= 0, 0.0, ci_low), np.where(n_successes >= n_trials, 1.0, ci_high)


def wilson_interval(n_successes: float, n_trials: int) -> tuple[float, float]:
    """95 % interval of a proportion, also correct near 0 and 1 [Wilson 1927]."""
    proportion = n_successes / n_trials
    shift = Z95 * Z95 / n_trials
    middle = (proportion + shift / 2) / (1 + shift)
    variance = proportion * (1 - proportion) / n_trials + shift / (4 * n_trials)
    half_width = Z95 * np.sqrt(variance) / (1 + shift)
    ci_high = middle + half_width

    # Both ends solve one quadratic equation. The lower one follows from their product, because a
    # difference of nearly equal numbers would put a model that is never right above a tiny chance.
    ci_low = proportion * proportion / (1 + shift) / ci_high
    return float(ci_low), float(ci_high)


def bootstrap_ratios(
    numerators: np.ndarray, denominators: np.ndarray, document_of_sample: ArrayLike
) -> list[EstimateRow]:
    """Ratio of sums of each measure, with its interval, bootstrapped over documents.

    None without samples.

    numerators: The contribution of each sample to each measure's numerator, (samples, measures).
    denominators: Its contribution to their common denominator, (samples,); samples with 0 are left
        out.
    document_of_sample: The document of each sample, (samples,).
    """
    is_counted = denominators > 0
    n_samples = int(is_counted.sum())
    if not n_samples:
        return []
    _, counted_documents = np.unique(
        np.asarray(document_of_sample)[is_counted], return_inverse=True
    )
    weights = document_weights(counted_documents, seed=0)
    draws = (weights @ numerators[is_counted]) / (weights @ denominators[is_counted])[:, None]
    return interval_rows(draws, 1 + int(counted_documents.max()), n_samples)


def interval_rows(draws: np.ndarray, n_documents: int, n_samples: int) -> list[EstimateRow]:
    """Estimates and intervals of measures from draws over documents.

    n_documents, n_samples: How many there are.

    draws: (1 + draws, measures); the first row is the estimate.
    """
    ci_low, ci_high = percentile_interval(draws[1:], n_documents)
    has_interval = n_documents > 1
    estimate_rows: list[EstimateRow] = []
    for measure, value in enumerate(draws[0]):
        estimate_rows.append(
            {
                "value": float(value),
                "ci_low": float(ci_low[measure]) if has_interval else None,
                "ci_high": float(ci_high[measure]) if has_interval else None,
                "n_samples": n_samples,
            }
        )
    return estimate_rows

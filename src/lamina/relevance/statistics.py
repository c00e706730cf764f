"""Error bars: bootstrap weights, and intervals of means and proportions."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtr, stdtrit

DRAWS = 1000  # 1,000 draws put the ends of a 95 % interval at the 25th and 975th value, enough for two digits
# What is left out at either end of a 95 % interval, and the standard errors on either side of it.
TAIL, Z95 = 0.025, 1.959964

MIN_SAMPLES = 50
"""Means of fewer samples have no interval: a loss that lies on a tenth of them may not have been seen at all."""

Ends = tuple[np.ndarray, np.ndarray]  # of intervals, low and high


def bootstrap_weights(n_samples: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """Weights of a paired bootstrap over samples, (1 + draws, n_samples); the first row is the plain mean.

    The same row weighs every unit, so that common effects of the samples cancel in differences between units.
    """
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(n_samples, np.full(n_samples, 1 / n_samples), size=draws)
    return np.vstack([np.ones(n_samples), counts]) / n_samples


def document_weights(documents: ArrayLike, seed: int) -> np.ndarray:
    """`bootstrap_weights` over documents: some samples are copies; `documents` (samples,) numbers theirs from 0."""
    numbers = np.asarray(documents)
    weights = bootstrap_weights(1 + int(numbers.max()), seed)[:, numbers]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def tail(n_samples: int) -> float:
    """Share of bootstrap draws beyond either end of a 95 % interval of a mean of so many samples [Hesterberg 2015].

    The spread of drawn means is too small by √((n - 1) / n), and Student's t is wider than the normal: 0.016 at 20.
    """
    if n_samples < 2:
        return 0.0
    return float(ndtr(np.sqrt(n_samples / (n_samples - 1)) * stdtrit(n_samples - 1, TAIL)))


def interval(draws: np.ndarray, n_samples: int | None = None) -> Ends:
    """Ends of the 95 % percentile interval over the first axis, of means of `n_samples` samples; NaN for one sample."""
    if n_samples == 1:
        return np.full(draws.shape[1:], np.nan), np.full(draws.shape[1:], np.nan)
    share = 100 * (tail(n_samples) if n_samples else TAIL)
    low, high = np.nanpercentile(draws, [share, 100 - share], axis=0)
    return low, high


def studentised_interval(
    draws: np.ndarray, errors: np.ndarray, skewness: np.ndarray, n_samples: np.ndarray
) -> Ends:
    """Ends of the 95 % bootstrap-t interval, (units,) each [Efron and Tibshirani 1993, ch. 12.5].

    draws, errors: Bootstrap draws and their standard errors, (1 + draws, units); the first row is the estimate.
    skewness: That of each mean, (units,), which `mean_skewness` estimates.
    n_samples: The number of samples of each unit, (units,). Units with fewer than `MIN_SAMPLES` get NaN.

    The largest of the losses are the rarest, and the samples may lack them. So on the side of the long tail the interval
    reaches further, the more skewed the samples are (`skewed_tail`).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        off = (draws[1:] - draws[0]) / errors[1:]
    # Draws of samples that are all alike tell no error but that of rounding.
    off = np.where(np.isfinite(off) & (errors[1:] > 1e-6 * errors[0]), off, np.nan)
    off = np.where(np.isnan(off).all(axis=0), 0.0, off)  # all samples are alike
    low = np.full(len(n_samples), np.nan)
    high = np.full(len(n_samples), np.nan)
    for unit in np.flatnonzero(n_samples >= MIN_SAMPLES):
        lower_tail = 100 * skewed_tail(-skewness[unit])
        upper_tail = 100 * skewed_tail(skewness[unit])
        # A draw that lies too low, as it does without the rare large losses, tells how far up the mean may be.
        furthest = np.nanpercentile(off[:, unit], [100 - lower_tail, upper_tail])
        low[unit], high[unit] = draws[0, unit] - furthest * errors[0, unit]
    return low, high


def skewed_tail(skewness: float) -> float:
    """Share of bootstrap draws beyond the end of a 95 % interval on the side of the long tail of the mean's distribution.

    Without skewness it is `TAIL`, as it is on the other side, where the skewness is negative. The tenth of it at a
    skewness of .3 was found by trying exponential, lognormal and rare losses: see reports/coverage.md.
    """
    return float(np.interp(skewness, [0.1, 0.3], [TAIL, TAIL / 10]))


def share_interval(right: np.ndarray, total: np.ndarray) -> Ends:
    """95 % interval of proportions by Jeffreys, also wide for 0 of n and n of n [Brown, Cai and DasGupta 2001]."""
    low, high = (betaincinv(right + 0.5, total - right + 0.5, end) for end in (TAIL, 1 - TAIL))
    return np.where(right <= 0, 0.0, low), np.where(right >= total, 1.0, high)


def wilson_interval(right: float, total: int) -> tuple[float, float]:
    """95 % interval of a proportion, also correct near 0 and 1 [Wilson 1927]."""
    z = Z95
    share, shift = right / total, z * z / total
    middle = (share + shift / 2) / (1 + shift)
    half = z * np.sqrt(share * (1 - share) / total + shift / (4 * total)) / (1 + shift)
    high = middle + half
    # Both ends solve one quadratic equation. Their product gives the lower one without a difference of near equals,
    # which would put a model that is never right above a chance of next to nothing.
    return float(share * share / (1 + shift) / high), float(high)


def ratios(
    sums: np.ndarray, numbers: np.ndarray, copies: ArrayLike
) -> list[dict[str, float | int | None]]:
    """Values, their intervals and the number of samples of sum / number, bootstrapped over documents.

    sums: What each sample adds to each measure, (samples, measures).
    numbers: What each sample adds to the count that divides the sum, (samples,); samples of 0 are left out.
    copies: The document of each sample.
    """
    kept = numbers > 0
    samples = int(kept.sum())
    if not samples:
        return []
    _, documents = np.unique(np.asarray(copies)[kept], return_inverse=True)
    weights = document_weights(documents, seed=0)
    draws = (weights @ sums[kept]) / (weights @ numbers[kept])[:, None]
    return interval_rows(draws, 1 + int(documents.max()), samples)


def interval_rows(
    draws: np.ndarray, documents: int, samples: int
) -> list[dict[str, float | int | None]]:
    """Values, intervals (None for one document) and the number of samples of measures, (1 + draws, measures) each."""
    ends = (
        np.array(interval(draws[1:])).T.tolist()
        if documents > 1
        else [(None, None)] * draws.shape[1]
    )
    return [
        {"value": float(value), "ci_low": low, "ci_high": high, "n_samples": samples}
        for value, (low, high) in zip(draws[0], ends, strict=True)
    ]

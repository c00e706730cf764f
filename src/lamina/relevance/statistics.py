"""Error bars: bootstrap weights and intervals for proportions."""

import numpy as np
from numpy.typing import ArrayLike

# 1,000 draws put the ends of a 95 % interval at the 25th and 975th value, enough for two digits.
DRAWS = 1000


def bootstrap_weights(n_samples: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """Weights of a paired bootstrap over samples, (1 + draws, n_samples); the first row is the plain mean.

    The same row weighs every unit, so that what samples share cancels in differences between units.
    """
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(n_samples, np.full(n_samples, 1 / n_samples), size=draws)
    return np.vstack([np.ones(n_samples), counts]) / n_samples


def document_weights(documents: ArrayLike, seed: int) -> np.ndarray:
    """`bootstrap_weights` of samples (samples,) of which some are copies: documents, numbered from 0, are drawn."""
    numbers = np.asarray(documents)
    weights = bootstrap_weights(1 + int(numbers.max()), seed)[:, numbers]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 95 % percentile interval over the first axis."""
    low, high = np.nanpercentile(draws, [2.5, 97.5], axis=0)
    return low, high


def wilson_interval(right: float, total: int) -> tuple[float, float]:
    """95 % interval of a proportion, right also near 0 and 1 [Wilson 1927]."""
    z = 1.959964
    share, shift = right / total, z * z / total
    middle = (share + shift / 2) / (1 + shift)
    half = z * np.sqrt(share * (1 - share) / total + shift / (4 * total)) / (1 + shift)
    high = middle + half
    # Both ends solve one quadratic equation. Their product gives the lower one without a difference of near equals,
    # which would put a model that is never right above a chance of next to nothing.
    return float(share * share / (1 + shift) / high), float(high)

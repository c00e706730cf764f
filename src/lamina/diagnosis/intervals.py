"""Error bars of what a diagnosis measured on samples."""

from collections.abc import Sequence

import numpy as np

from lamina.relevance.statistics import bootstrap_weights, interval


def ends(draws: np.ndarray, samples: int) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Ends of the 95 % intervals of measures (1 + draws, measures), the first row being the plain values.

    None from a single sample.
    """
    if samples == 1:
        nothing = [None] * draws.shape[1]
        return nothing, nothing
    low, high = interval(draws[1:])
    return low.tolist(), high.tolist()


def ratios(sums: np.ndarray, numbers: np.ndarray) -> list[dict[str, float | int | None]]:
    """Values, their intervals and the number of samples of sum / number, bootstrapped over samples.

    Parameters
    ----------
    sums
        What each sample adds to each measure, (samples, measures).
    numbers
        What it adds to the count below, (samples,); samples of 0 count for nothing.
    """
    kept = numbers > 0
    samples = int(kept.sum())
    if not samples:
        return []
    weights = bootstrap_weights(samples, seed=0)
    draws = (weights @ sums[kept]) / (weights @ numbers[kept])[:, None]
    return [
        {"value": float(value), "ci_low": low, "ci_high": high, "n_samples": samples}
        for value, low, high in zip(draws[0], *ends(draws, samples), strict=True)
    ]

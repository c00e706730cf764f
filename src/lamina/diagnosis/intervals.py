"""Error bars of what a diagnosis measured on samples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from lamina.relevance.statistics import document_weights, interval


def ends(draws: np.ndarray, documents: int) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Ends of the 95 % intervals of measures (1 + draws, measures); the first row holds the plain values.

    The ends are None for a single document.
    """
    if documents == 1:
        nothing = [None] * draws.shape[1]
        return nothing, nothing
    low, high = interval(draws[1:])
    return low.tolist(), high.tolist()


def ratios(sums: np.ndarray, numbers: np.ndarray, copies: ArrayLike) -> list[dict[str, float | int | None]]:
    """Values, their intervals and the number of samples of sum / number, bootstrapped over documents.

    Parameters
    ----------
    sums
        What each sample adds to each measure, (samples, measures).
    numbers
        What each sample adds to the count that divides the sum, (samples,); samples of 0 are left out.
    copies
        The document of each sample.
    """
    kept = numbers > 0
    samples = int(kept.sum())
    if not samples:
        return []
    _, documents = np.unique(np.asarray(copies)[kept], return_inverse=True)
    weights = document_weights(documents, seed=0)
    draws = (weights @ sums[kept]) / (weights @ numbers[kept])[:, None]
    return [
        {"value": float(value), "ci_low": low, "ci_high": high, "n_samples": samples}
        for value, low, high in zip(draws[0], *ends(draws, 1 + int(documents.max())), strict=True)
    ]

"""How many of many drawn studies have an interval that holds the truth."""

import numpy as np

Z95 = 1.959964
CONFIDENCE = 0.95


def share_held(low: np.ndarray, high: np.ndarray, truth: float | np.ndarray) -> float:
    """The share of intervals that hold the truth."""
    is_held = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
    return float(is_held.mean())


def three_errors(share: float, n_studies: int) -> float:
    """Three standard errors of a share of so many studies."""
    return float(3 * np.sqrt(share * (1 - share) / n_studies))


def assert_coverage(
    coverage: float, n_studies: int, least: float = 0.93, most: float = 0.97
) -> None:
    """The coverage is between both, but for what so few studies can tell."""
    margin = three_errors(CONFIDENCE, n_studies)
    assert least - margin <= coverage <= most + margin

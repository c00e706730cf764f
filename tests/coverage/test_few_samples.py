"""Intervals of losses that lie on few samples: none where the samples may lack them, and wide ones
where they are few.
"""

import numpy as np
import pytest
from scipy.stats import skew

from lamina.relevance.columns import mean_skewness, weighted_ratio, weighted_ratio_errors
from lamina.relevance.statistics import bootstrap_weights, studentised_interval


def interval(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % intervals of the mean loss of each unit, from (units, samples)."""
    n_samples = losses.shape[1]
    weights = bootstrap_weights(n_samples, 0)
    return studentised_interval(
        weighted_ratio(weights, losses),
        weighted_ratio_errors(weights, losses),
        mean_skewness(losses),
        np.full(len(losses), n_samples),
    )


@pytest.mark.parametrize("n_samples", [1, 20, 30, 49])
def test_fewer_than_fifty_samples_have_no_interval(n_samples: int) -> None:
    """Of 20 samples of a loss on a tenth, none has it in one study of eight: no interval holds its
    mean there.
    """
    low, high = interval(np.random.default_rng(0).exponential(size=(3, n_samples)))
    assert np.isnan(low).all() and np.isnan(high).all()


@pytest.mark.parametrize(("sigma", "n_samples"), [(1.0, 50), (1.5, 50), (1.5, 100)])
def test_means_of_skewed_losses_are_covered(sigma: float, n_samples: int) -> None:
    """With equal tails 93, 89 and 89 % of these intervals hold the mean."""
    rng = np.random.default_rng(n_samples + 1)
    low, high = interval(rng.lognormal(0, sigma, (400, n_samples)))
    truth = np.exp(sigma**2 / 2)
    assert np.mean((low <= truth) & (truth <= high)) >= 0.93 - 3 * (0.05 * 0.95 / 400) ** 0.5


def test_the_skewness_of_a_mean_is_that_of_the_samples_by_the_root_of_their_number() -> None:
    losses = np.random.default_rng(0).exponential(size=(4, 60))
    assert mean_skewness(losses) == pytest.approx(skew(losses, axis=1) / 60**0.5)
    assert mean_skewness(np.ones((2, 60))) == pytest.approx([0, 0])


def test_even_tails_are_left_even() -> None:
    """Twins of opposite signs: the interval of one is the mirror of the other's."""
    losses = np.random.default_rng(0).exponential(size=(1, 80))
    low, high = interval(np.vstack([losses, -losses]))
    assert low[1] == pytest.approx(-high[0]) and high[1] == pytest.approx(-low[0])
    mean = losses.mean()
    assert high[0] - mean > 1.3 * (mean - low[0])

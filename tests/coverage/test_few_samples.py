"""Intervals of losses that lie on few samples: none where samples may lack them, and wide ones.

They are counted on lognormal losses with a known mean, and compared with scipy.
"""

import numpy as np
import pytest
from scipy.stats import skew

from lamina.relevance.columns import mean_skewness, weighted_ratio, weighted_ratio_errors
from lamina.relevance.statistics import (
    bootstrap_ratios,
    bootstrap_weights,
    studentised_interval,
)
from tests.coverage.examples import assert_coverage, share_held


def mean_interval(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of the mean loss of each unit, from (units, samples)."""
    n_units, n_samples = losses.shape
    weights = bootstrap_weights(n_samples, 0)
    return studentised_interval(
        weighted_ratio(weights, losses),
        weighted_ratio_errors(weights, losses),
        mean_skewness(losses),
        np.full(n_units, n_samples),
    )


@pytest.mark.parametrize("n_samples", [1, 20, 30, 49])
def test_fewer_than_fifty_samples_have_no_interval(n_samples: int) -> None:
    """If a tenth of the samples have a loss, none of 20 has it in one study of eight.

    No interval of such a study holds the mean.
    """
    losses = np.random.default_rng(0).exponential(size=(3, n_samples))

    low, high = mean_interval(losses)

    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize(("sigma", "n_samples"), [(1.0, 50), (1.5, 50), (1.5, 100)])
def test_means_of_skewed_losses_are_covered(sigma: float, n_samples: int) -> None:
    """With equal tails, 93, 89 and 89 % of these intervals would hold the mean."""
    n_studies = 400
    generator = np.random.default_rng(n_samples + 1)
    losses = generator.lognormal(0, sigma, (n_studies, n_samples))

    low, high = mean_interval(losses)

    true_mean = np.exp(sigma**2 / 2)
    assert_coverage(share_held(low, high, true_mean), n_studies, most=1.0)


def test_the_skewness_of_a_mean_is_that_of_the_samples_by_the_root_of_their_number() -> None:
    losses = np.random.default_rng(0).exponential(size=(4, 60))

    assert mean_skewness(losses) == pytest.approx(skew(losses, axis=1) / 60**0.5)


def test_equal_losses_have_no_skewness() -> None:
    assert mean_skewness(np.ones((2, 60))) == pytest.approx([0, 0])


def test_the_longer_tail_has_the_wider_side() -> None:
    """Of losses and the same with the opposite sign, the intervals are mirrored."""
    losses = np.random.default_rng(0).exponential(size=(1, 80))

    low, high = mean_interval(np.vstack([losses, -losses]))

    assert low[1] == pytest.approx(-high[0])
    assert high[1] == pytest.approx(-low[0])
    mean = losses.mean()
    assert high[0] - mean > 1.3 * (mean - low[0])


@pytest.mark.parametrize("n_documents", [5, 10])
def test_the_interval_of_a_diagnosis_holds_the_truth_with_few_documents(n_documents: int) -> None:
    """Each document has three samples, which share its deviation."""
    rng = np.random.default_rng(0)
    n_studies = 400
    documents = np.repeat(np.arange(n_documents), 3)
    low = []
    high = []
    for _ in range(n_studies):
        deviations = rng.normal(size=n_documents)[documents, None]
        (estimate,) = bootstrap_ratios(deviations, np.ones(len(documents)), documents)
        low.append(estimate["ci_low"])
        high.append(estimate["ci_high"])

    assert_coverage(share_held(np.array(low), np.array(high), 0.0), n_studies, least=0.92)

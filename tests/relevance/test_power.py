"""The reliability of a ranking, against rank correlations of planted scores from other samples."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import ranking_reliability, samples_for
from tests.given.slow import mark_slow


@pytest.mark.parametrize(
    ("n_samples", "spread"), [mark_slow((40, 0.05)), (40, 0.3), mark_slow((300, 0.1))]
)
def test_it_is_the_agreement_with_rankings_from_other_samples(
    n_samples: int, spread: float
) -> None:
    """The noise of a sample has a standard deviation of 1 by unit, and 1 more that units share."""
    generator = np.random.default_rng(n_samples)
    estimates: list[float] = []
    true_agreements: list[float] = []
    for study in range(100):
        true_scores = spread * generator.normal(size=24)
        unit_noise = generator.normal(size=(24, n_samples))
        shared_noise = generator.normal(size=n_samples)
        samples = true_scores[:, None] + unit_noise + shared_noise
        draws = bootstrap_weights(n_samples, study, 200) @ samples.T

        interval = ranking_reliability(draws, n_samples)

        assert interval is not None
        estimate, low, high = interval
        assert low <= estimate <= high
        estimates.append(estimate)

        first_scores = true_scores + generator.normal(size=24) / n_samples**0.5
        second_scores = true_scores + generator.normal(size=24) / n_samples**0.5
        true_agreements.append(spearmanr(first_scores, second_scores).statistic)

    assert np.mean(estimates) == pytest.approx(np.mean(true_agreements), abs=0.09)


def test_two_units_far_from_the_others_do_not_make_a_ranking_reliable() -> None:
    """The ten others are alike, so that the agreement of two rankings is .42."""
    generator = np.random.default_rng(0)
    true_scores = np.where(np.arange(12) < 2, 5.0, 0.0)
    samples = true_scores[:, None] + generator.normal(size=(12, 50))
    draws = bootstrap_weights(50, 0, 200) @ samples.T

    interval = ranking_reliability(draws, 50)

    assert interval is not None
    _, low, high = interval
    assert low < 0.42 < high


EQUAL_DRAWS = np.tile(np.arange(5.0), (200, 1))
"""200 draws of the scores of five units, without noise."""


def test_without_noise_a_ranking_is_fully_reliable() -> None:
    assert ranking_reliability(EQUAL_DRAWS, 50) == (1.0, 1.0, 1.0)


def test_two_units_have_no_reliability() -> None:
    assert ranking_reliability(EQUAL_DRAWS[:, :2], 50) is None


def test_units_with_equal_scores_have_no_reliability() -> None:
    assert ranking_reliability(np.zeros((200, 5)), 50) is None


def test_a_reliability_of_8_tenths_needs_four_times_the_samples_of_one_of_a_half() -> None:
    """The signal-to-noise ratio r / (1 - r) is 4 instead of 1, and grows with the samples."""
    assert samples_for(0.8, 0.5, 100) == pytest.approx(400)


def test_no_number_of_samples_makes_a_ranking_without_signal_reliable() -> None:
    assert samples_for(0.8, 0.0, 100) == float("inf")

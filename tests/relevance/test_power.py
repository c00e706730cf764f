"""How sure a ranking is: against rank correlations of scores from disjoint samples, planted."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import ranking_reliability, samples_for


@pytest.mark.parametrize(("n_samples", "spread"), [(40, 0.05), (40, 0.3), (300, 0.1)])
def test_it_is_the_agreement_with_rankings_from_other_samples(
    n_samples: int, spread: float
) -> None:
    """The noise of a sample has a standard deviation of 1 by unit, and 1 more that units share."""
    rng = np.random.default_rng(n_samples)
    estimates = []
    true_agreements = []
    for study in range(100):
        true_scores = spread * rng.normal(size=24)
        samples = (
            true_scores[:, None] + rng.normal(size=(24, n_samples)) + rng.normal(size=n_samples)
        )
        draws = bootstrap_weights(n_samples, study, 200) @ samples.T
        interval = ranking_reliability(draws, n_samples)
        assert interval is not None
        estimate, low, high = interval
        assert low <= estimate <= high
        estimates.append(estimate)

        first_scores = true_scores + rng.normal(size=24) / n_samples**0.5
        second_scores = true_scores + rng.normal(size=24) / n_samples**0.5
        true_agreements.append(spearmanr(first_scores, second_scores).statistic)
    assert np.mean(estimates) == pytest.approx(np.mean(true_agreements), abs=0.09)


def test_two_units_far_from_the_others_do_not_make_a_ranking_sure() -> None:
    rng = np.random.default_rng(0)
    true_scores = np.where(np.arange(12) < 2, 5.0, 0.0)
    samples = true_scores[:, None] + rng.normal(size=(12, 50))
    interval = ranking_reliability(bootstrap_weights(50, 0, 200) @ samples.T, 50)
    assert interval is not None
    _, low, high = interval
    assert low < 0.42 < high, "the ten others are alike"


def test_without_noise_a_ranking_is_sure_and_of_two_units_there_is_none() -> None:
    scores = np.tile(np.arange(5.0), (200, 1))
    assert ranking_reliability(scores, 50) == (1.0, 1.0, 1.0)
    assert ranking_reliability(scores[:, :2], 50) is None
    assert ranking_reliability(np.zeros((200, 5)), 50) is None


def test_samples_for_a_reliability_double_the_signal_with_the_samples() -> None:
    assert samples_for(0.8, 0.5, 100) == pytest.approx(400)
    assert samples_for(0.8, 0.0, 100) == float("inf")

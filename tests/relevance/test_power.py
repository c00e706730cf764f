"""How sure a ranking is: against rank correlations of scores from disjoint samples, planted."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import reliability, samples_for


@pytest.mark.parametrize(("n", "spread"), [(40, 0.05), (40, 0.3), (300, 0.1)])
def test_it_is_the_agreement_with_rankings_from_other_samples(n: int, spread: float) -> None:
    """Noise is 1 a sample, half of it shared by all units."""
    rng, found, true = np.random.default_rng(n), [], []
    for study in range(100):
        truth = spread * rng.normal(size=24)
        samples = truth[:, None] + rng.normal(size=(24, n)) + rng.normal(size=n)
        value = reliability(bootstrap_weights(n, study, 200) @ samples.T, n)
        assert value is not None and value[1] <= value[0] <= value[2]
        found.append(value[0])
        one, other = (truth + rng.normal(size=24) / n**0.5 for _ in range(2))
        true.append(spearmanr(one, other).statistic)
    assert np.mean(found) == pytest.approx(np.mean(true), abs=0.09)


def test_two_units_far_from_the_others_do_not_make_a_ranking_sure() -> None:
    rng = np.random.default_rng(0)
    truth = np.where(np.arange(12) < 2, 5.0, 0.0)
    samples = truth[:, None] + rng.normal(size=(12, 50))
    value = reliability(bootstrap_weights(50, 0, 200) @ samples.T, 50)
    assert value is not None and value[1] < 0.42 < value[2], "the ten others are alike"


def test_without_noise_a_ranking_is_sure_and_of_two_units_there_is_none() -> None:
    scores = np.tile(np.arange(5.0), (200, 1))
    assert reliability(scores, 50) == (1.0, 1.0, 1.0)
    assert reliability(scores[:, :2], 50) is None
    assert reliability(np.zeros((200, 5)), 50) is None


def test_samples_for_a_reliability_double_the_signal_with_the_samples() -> None:
    assert samples_for(0.8, 0.5, 100) == pytest.approx(400)
    assert samples_for(0.8, 0.0, 100) == float("inf")

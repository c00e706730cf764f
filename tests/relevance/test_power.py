"""How sure a ranking is: against correlations of scores from disjoint samples, planted."""

import numpy as np
import pytest

from lamina.relevance.statistics import bootstrap_weights
from lamina.relevance.true_scores import reliability


def scores(rng: np.random.Generator, units: int, n: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Samples of units whose true scores spread so much, noise being 1 a sample, half of it shared by all units."""
    truth = spread * rng.normal(size=units)
    noise = rng.normal(size=(units, n)) + rng.normal(size=n)
    return truth, truth[:, None] + noise


@pytest.mark.parametrize(("n", "spread"), [(40, 0.05), (40, 0.3), (300, 0.1)])
def test_it_is_the_correlation_with_scores_from_other_samples(n: int, spread: float) -> None:
    rng, told, held = np.random.default_rng(n), [], []
    truth = spread**2 / (spread**2 + 1 / n)
    for study in range(200):
        _, samples = scores(rng, 24, n, spread)
        found = reliability(bootstrap_weights(n, study, 200) @ samples.T, n)
        assert found is not None
        told.append(found[0])
        held.append(found[1] <= truth <= found[2])
    assert np.mean(told) == pytest.approx(truth, abs=0.08)
    assert np.mean(held) > 0.9
    other = [
        np.corrcoef(true + rng.normal(size=24) / n**0.5, samples.mean(axis=1))[0, 1]
        for true, samples in (scores(rng, 24, n, spread) for _ in range(300))
    ]
    assert np.mean(other) == pytest.approx(truth, abs=0.06)

"""What single kinds of studies need: series of checkpoints, and stability against plain loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina.errors import LaminaError
from lamina.relevance.columns import Columns, Context
from lamina.relevance.stability import calibration_sizes, ranking_stability
from lamina_workflow.checks.load import load_configuration
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data

HUB: RawConfig = {
    "source": "org/model",
    "revision": "step{checkpoint}",
    "layers": 8,
    "checkpoints": [2000, "400-tokens1B"],
}


def series_configuration(**changes: Any) -> RawConfig:
    """A hub model trained to two steps, in the study of maps together with another model."""
    raw = set_key(minimal_config(), "models.trained", {**HUB, **changes})
    return set_key(raw, "studies.maps.models", ["trained", "small"])


def test_checkpoints_become_models_and_studies_follow(tmp_path: Path) -> None:
    config = load_configuration(series_configuration(), write_model_and_data(tmp_path))

    names = ["trained-2000", "trained-400-tokens1B"]
    assert config.studies["maps"].models == [*names, "small"]
    assert "trained" not in config.models
    first_model = config.models["trained-2000"]
    second_model = config.models["trained-400-tokens1B"]
    assert first_model.series == second_model.series == "trained"
    assert first_model.revision == "step2000"
    assert first_model.step == 2000
    assert second_model.revision == "step400-tokens1B"
    assert second_model.step == 400


def test_a_configuration_of_checkpoints_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    config = load_configuration(series_configuration(), write_model_and_data(tmp_path))

    assert load_configuration(config.plain(), tmp_path) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoints": ["last"]}, "models.trained.checkpoints: 'last' holds no number"),
        ({"checkpoints": [5, "5b"]}, "models.trained.checkpoints: '5' and '5b' are both at step 5"),
        ({"checkpoints": []}, "models.trained.checkpoints: [] is not allowed"),
        ({"checkpoints": ["a/1"]}, "models.trained.checkpoints"),
        (
            {"revision": "main"},
            "models.trained.checkpoints: nothing says where the checkpoint goes. Write {checkpoint}",
        ),
        ({"checkpoints": None, "revision": "main", "step": 3}, "models.trained.series: is missing"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(
    changes: RawConfig, message: str, tmp_path: Path
) -> None:
    raw = series_configuration(**changes)

    with pytest.raises(LaminaError) as refusal:
        load_configuration(raw, write_model_and_data(tmp_path))

    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("n_samples", "sizes"),
    [(63, []), (64, [32]), (200, [32, 64, 100]), (256, [32, 64, 128])],
)
def test_sizes_double_up_to_half_of_the_samples(n_samples: int, sizes: list[int]) -> None:
    assert calibration_sizes(n_samples) == sizes


def test_stability_is_the_correlation_of_two_halves() -> None:
    """With 64 samples a pair splits them: against scipy on the same splits, in plain loops."""
    data_generator = np.random.default_rng(1)
    base_losses = data_generator.exponential(size=(1, 64))
    rises = data_generator.normal(np.arange(6)[:, None] / 4, 1, (6, 64))
    losses = base_losses + np.vstack([np.zeros(64), rises])
    measured = {"nll": losses, "n_tokens": np.ones((7, 64))}
    columns = Columns(tuple("012345"), measured, np.full(7, 64))

    ((size, interval),) = ranking_stability(columns, "perplexity", Context(), seed=3)

    generator = np.random.default_rng(3)
    correlations: list[float] = []
    for _ in range(200):
        order = generator.permutation(64)
        first_rises = mean_rises(losses, order[:32])
        second_rises = mean_rises(losses, order[32:])
        correlations.append(spearmanr(first_rises, second_rises).statistic)
    low, median, high = np.percentile(correlations, [2.5, 50, 97.5])
    assert size == 32
    assert interval == pytest.approx((median, low, high))
    assert 0 < interval[1] < interval[2] <= 1


def mean_rises(losses: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Mean rise of the loss without each unit over some samples, (units,)."""
    return losses[1:, samples].mean(1) - losses[0, samples].mean()

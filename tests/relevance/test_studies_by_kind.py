"""What the figures of single kinds of studies are drawn from, against plain computations."""

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


def series(**changes: Any) -> RawConfig:
    """The hub's model trained to two steps, in the study of maps beside another one."""
    return set_key(
        set_key(minimal_config(), "models.trained", {**HUB, **changes}),
        "studies.maps.models",
        ["trained", "small"],
    )


def test_checkpoints_become_models_and_studies_follow(tmp_path: Path) -> None:
    config = load_configuration(series(), write_model_and_data(tmp_path))
    names = ["trained-2000", "trained-400-tokens1B"]
    assert config.studies["maps"].models == [*names, "small"]
    assert [config.models[name].revision for name in names] == ["step2000", "step400-tokens1B"]
    assert [(config.models[name].series, config.models[name].step) for name in names] == [
        ("trained", 2000),
        ("trained", 400),
    ]
    assert "trained" not in config.models
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
            "models.trained.checkpoints: nothing says where the checkpoint goes. Write {checkpoint} in",
        ),
        ({"checkpoints": None, "revision": "main", "step": 3}, "models.trained.series: is missing"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(
    changes: RawConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(LaminaError) as caught:
        load_configuration(series(**changes), write_model_and_data(tmp_path))
    assert str(caught.value).startswith(message)


def test_sizes_double_up_to_half_of_the_samples() -> None:
    assert [calibration_sizes(n) for n in (63, 64, 200, 256)] == [
        [],
        [32],
        [32, 64, 100],
        [32, 64, 128],
    ]


def test_stability_is_the_correlation_of_two_halves() -> None:
    """With 64 samples a pair splits them: against scipy on the same splits, in plain loops."""
    rng = np.random.default_rng(1)
    base_losses = rng.exponential(size=(1, 64))
    rises = rng.normal(np.arange(6)[:, None] / 4, 1, (6, 64))
    losses = base_losses + np.vstack([np.zeros(64), rises])
    columns = Columns(
        tuple("012345"), {"nll": losses, "n_tokens": np.ones((7, 64))}, np.full(7, 64)
    )
    ((size, interval),) = ranking_stability(columns, "perplexity", Context(), seed=3)

    generator = np.random.default_rng(3)
    correlations = []
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

"""What the figures of single kinds of studies are drawn from, against plain computations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from lamina.checks.load import load
from lamina.errors import LaminaError
from lamina.relevance.columns import Columns, Context
from lamina.relevance.stability import sizes, stability
from tests.given.configurations import Raw, minimal, put, workplace

HUB: Raw = {
    "source": "org/model",
    "revision": "step{checkpoint}",
    "layers": 8,
    "checkpoints": [2000, "400-tokens1B"],
}


def series(**changes: Any) -> Raw:
    """The hub's model trained to two steps, in the study of maps beside another one."""
    return put(
        put(minimal(), "models.trained", {**HUB, **changes}),
        "studies.maps.models",
        ["trained", "small"],
    )


def test_checkpoints_become_models_and_studies_follow(tmp_path: Path) -> None:
    config = load(series(), workplace(tmp_path))
    names = ["trained-2000", "trained-400-tokens1B"]
    assert config.studies["maps"].models == [*names, "small"]
    assert [config.models[name].revision for name in names] == ["step2000", "step400-tokens1B"]
    assert [(config.models[name].series, config.models[name].step) for name in names] == [
        ("trained", 2000),
        ("trained", 400),
    ]
    assert "trained" not in config.models
    assert load(config.plain(), tmp_path) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoints": ["last"]}, "models.trained.checkpoints: 'last' holds no number"),
        ({"checkpoints": [5, "5b"]}, "models.trained.checkpoints: '5' and '5b' are both at 5"),
        ({"checkpoints": []}, "models.trained.checkpoints: [] is not allowed"),
        ({"checkpoints": ["a/1"]}, "models.trained.checkpoints"),
        (
            {"revision": "main"},
            "models.trained.checkpoints: nothing says where they go. Write {checkpoint} in",
        ),
        ({"checkpoints": None, "revision": "main", "step": 3}, "models.trained.series: is missing"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(changes: Raw, message: str, tmp_path: Path) -> None:
    with pytest.raises(LaminaError) as caught:
        load(series(**changes), workplace(tmp_path))
    assert str(caught.value).startswith(message)


def test_sizes_double_up_to_half_of_the_samples() -> None:
    assert [sizes(n) for n in (63, 64, 200, 256)] == [[], [32], [32, 64, 100], [32, 64, 128]]


def test_stability_is_the_correlation_of_two_halves() -> None:
    """With 64 samples a pair splits them: against scipy on the same splits, in plain loops."""
    rng = np.random.default_rng(1)
    losses = rng.exponential(size=(1, 64)) + np.vstack(
        [np.zeros(64), rng.normal(np.arange(6)[:, None] / 4, 1, (6, 64))]
    )
    columns = Columns(
        tuple("012345"), {"nll": losses, "n_tokens": np.ones((7, 64))}, np.full(7, 64)
    )
    ((size, found),) = stability(columns, "perplexity", Context(), seed=3)
    draws, plain = np.random.default_rng(3), []
    for _ in range(200):
        order = draws.permutation(64)
        first, second = (
            losses[1:, half].mean(1) - losses[0, half].mean() for half in (order[:32], order[32:])
        )
        plain.append(spearmanr(first, second).statistic)
    low, middle, high = np.percentile(plain, [2.5, 50, 97.5])
    assert size == 32 and found == pytest.approx((middle, low, high))
    assert 0 < found[1] < found[2] <= 1

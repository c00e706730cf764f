"""The variance diagnosis is the plain computation over unpadded streams, and knows linear from exponential growth."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from lamina.diagnosis import variance
from lamina.diagnosis.variance import Variance
from lamina.models.structure import layers_of
from lamina.store import parquet as store
from tests.given import tiny

DEPTH = 16


def diagnose(
    model: Any, texts: list[list[int]], skip_first: int = 2
) -> dict[tuple[str, int | None], dict[str, Any]]:
    rows = variance.diagnose(model, tiny.samples(texts), Variance(skip_first=skip_first), tokens=60)
    store.from_rows("diagnoses", rows, model="m", calibration="c", diagnosis="d", kind="variance")
    return {(row["measure"], row.get("layer")): row for row in rows}


def texts(count: int = 12) -> list[list[int]]:
    return [tiny.tokens(1, 3 + number % 7, seed=number)[0].tolist() for number in range(count)]


@pytest.mark.parametrize("skip", [2, 5])
def test_measures_are_those_of_unpadded_streams(skip: int) -> None:
    model, sequences = tiny.model(), texts()
    found = diagnose(model, sequences, skip)
    for suffix, first in (("", 0), ("_without_first", skip)):
        used = [ids for ids in sequences if len(ids) > first]
        parts = [tiny.stream(model, torch.tensor([ids]), layers_of(model)) for ids in used]
        streams = [
            torch.cat([part[place][0, first:] for part in parts]).double() for place in range(6)
        ]
        for layer in range(6):
            row = found[f"variance{suffix}", layer]
            assert row["value"] == pytest.approx(float(streams[layer].var(correction=0)), rel=1e-4)
            assert row["ci_low"] < row["value"] < row["ci_high"] and row["n_samples"] == len(used)
        for layer in range(5):
            change = (streams[layer + 1] - streams[layer]).norm(dim=1) / streams[layer].norm(dim=1)
            assert found[f"update_ratio{suffix}", layer]["value"] == pytest.approx(
                float(change.mean()), rel=1e-4
            )
        logs = [math.log(float(stream.var(correction=0))) for stream in streams[1:]]
        for name, x in (("exponential", np.arange(1, 6)), ("power", np.log(np.arange(1, 6)))):
            slope = np.polyfit(x, logs, 1)[0]
            assert found[f"{name}_slope{suffix}", None]["value"] == pytest.approx(slope, rel=1e-3)
            r2 = np.corrcoef(x, logs)[0, 1] ** 2
            assert found[f"{name}_r2{suffix}", None]["value"] == pytest.approx(r2, rel=1e-3)
    assert ("update_ratio", 5) not in found


def growing(factor: float) -> Any:
    """A model of wide streams whose layers add independent updates of a given share of the stream's own variance.

    Share 0 stands for updates of variance 1 each.
    """
    model = tiny.model(depth=DEPTH, hidden_size=256, intermediate_size=8, num_attention_heads=4)
    model.model.embed_tokens.weight.data.normal_(std=2.0)
    for number, layer in enumerate(layers_of(model)):
        generator = torch.Generator().manual_seed(number)

        def forward(
            hidden_states: torch.Tensor, generator: Any = generator, **_: Any
        ) -> torch.Tensor:
            noise = torch.randn(hidden_states.shape, generator=generator)
            return hidden_states + noise * (factor**0.5 * hidden_states.std() if factor else 1.0)

        layer.forward = forward
    return model


def test_independent_unit_updates_make_the_variance_grow_by_one_a_layer() -> None:
    found = diagnose(growing(0), texts(40))
    start = found["variance", 0]["value"]
    for layer in range(DEPTH + 1):
        assert found["variance", layer]["value"] == pytest.approx(start + layer, rel=0.03)
    assert found["update_ratio", 3]["value"] == pytest.approx((start + 3) ** -0.5, rel=0.03)


def test_exponential_growth_is_told_from_linear_growth() -> None:
    found = diagnose(growing(0.5), texts(40))
    assert found["exponential_slope", None]["value"] == pytest.approx(math.log(1.5), rel=0.03)
    assert found["exponential_r2", None]["value"] > 0.999 > found["power_r2", None]["value"]


def test_the_interval_is_that_of_resampled_samples() -> None:
    model, sequences = tiny.model(), texts(40)
    row = diagnose(model, sequences)["variance", 4]
    streams = [
        tiny.stream(model, torch.tensor([ids]), layers_of(model))[4][0].double().numpy()
        for ids in sequences
    ]
    draw = np.random.default_rng(1)
    values = [
        np.concatenate([streams[n] for n in draw.integers(40, size=40)]).var() for _ in range(600)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    assert row["ci_low"] == pytest.approx(low, rel=0.05) and row["ci_high"] == pytest.approx(
        high, rel=0.05
    )

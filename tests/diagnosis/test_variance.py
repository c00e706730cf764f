"""The variance of streams, against plain computations on unpadded texts and planted growth."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.diagnosis import variance
from lamina.diagnosis.rows import DiagnosisRow
from lamina.diagnosis.variance import Variance
from lamina.models.structure import layers_of
from tests.diagnosis.examples import RowKey, rows_by_measure
from tests.given import tiny

DEEP = 16


def diagnose(
    model: PreTrainedModel, texts: list[list[int]], skip_first: int = 2
) -> dict[RowKey, DiagnosisRow]:
    options = Variance(skip_first=skip_first)
    rows = variance.diagnose(model, tiny.samples(texts), options, token_budget=60)
    return rows_by_measure(rows, "variance")


def make_texts(count: int = 12) -> list[list[int]]:
    """Texts of 3 to 9 tokens."""
    return [tiny.tokens(1, 3 + index % 7, seed=index)[0].tolist() for index in range(count)]


def collect_streams(
    model: PreTrainedModel, texts: list[list[int]], skip_first: int
) -> list[torch.Tensor]:
    """The streams of all tokens after the first ones, (tokens, C) at each boundary.

    The texts run one by one, without padding.
    """
    streams_by_text = [
        tiny.stream(model, torch.tensor([token_ids]), layers_of(model)) for token_ids in texts
    ]
    all_streams: list[torch.Tensor] = []
    for boundary in range(len(layers_of(model)) + 1):
        token_streams = [streams[boundary][0, skip_first:] for streams in streams_by_text]
        all_streams.append(torch.cat(token_streams).double())
    return all_streams


@pytest.mark.parametrize("skip_first", [2, 5])
@pytest.mark.parametrize("suffix", ["", "_without_first"])
def test_measures_are_those_of_unpadded_streams(suffix: str, skip_first: int) -> None:
    model = tiny.model()

    rows = diagnose(model, make_texts(), skip_first)

    n_skipped = skip_first if suffix else 0
    used_texts = [token_ids for token_ids in make_texts() if len(token_ids) > n_skipped]
    streams = collect_streams(model, used_texts, n_skipped)

    variances = [float(stream.var(correction=0)) for stream in streams]
    for boundary, expected in enumerate(variances):
        row = rows[f"variance{suffix}", boundary]
        assert row["value"] == pytest.approx(expected, rel=1e-4)
        assert row["ci_low"] < row["value"] < row["ci_high"]
        assert row["n_samples"] == len(used_texts)
    for layer in range(5):
        update = streams[layer + 1] - streams[layer]
        ratio = update.norm(dim=1) / streams[layer].norm(dim=1)
        row = rows[f"update_ratio{suffix}", layer]
        assert row["value"] == pytest.approx(float(ratio.mean()), rel=1e-4)
    assert (f"update_ratio{suffix}", 5) not in rows

    log_variances = np.log(variances[1:])
    layers = np.arange(1, 6)
    for growth, x in (("exponential", layers), ("power", np.log(layers))):
        slope, _ = np.polyfit(x, log_variances, 1)
        r2 = np.corrcoef(x, log_variances)[0, 1] ** 2
        assert rows[f"{growth}_slope{suffix}", None]["value"] == pytest.approx(slope, rel=1e-3)
        assert rows[f"{growth}_r2{suffix}", None]["value"] == pytest.approx(r2, rel=1e-3)


class NoiseLayer:
    """A layer's forward pass that adds noise.

    Its variance is a share of the stream's own, or 1 if the share is 0.
    """

    def __init__(self, seed: int, share: float) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.share = share

    def __call__(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        deviation: Any = 1.0
        if self.share:
            deviation = self.share**0.5 * hidden_states.std()
        noise = torch.randn(hidden_states.shape, generator=self.generator)
        return hidden_states + deviation * noise


def make_noise_model(share: float) -> PreTrainedModel:
    """A model of wide streams whose layers add independent noise."""
    model = tiny.model(depth=DEEP, hidden_size=256, intermediate_size=8, num_attention_heads=4)
    model.get_input_embeddings().weight.data.normal_(std=2.0)
    for index, layer in enumerate(layers_of(model)):
        layer.forward = NoiseLayer(index, share)
    return model


def test_independent_unit_updates_make_the_variance_grow_by_one_a_layer() -> None:
    rows = diagnose(make_noise_model(share=0), make_texts(40))

    start = rows["variance", 0]["value"]
    assert start is not None
    for layer in range(DEEP + 1):
        assert rows["variance", layer]["value"] == pytest.approx(start + layer, rel=0.03)
    assert rows["update_ratio", 3]["value"] == pytest.approx((start + 3) ** -0.5, rel=0.03)


def test_exponential_growth_fits_an_exponential_better_than_a_power() -> None:
    rows = diagnose(make_noise_model(share=0.5), make_texts(40))

    assert rows["exponential_slope", None]["value"] == pytest.approx(math.log(1.5), rel=0.03)
    assert rows["exponential_r2", None]["value"] > 0.999
    assert rows["power_r2", None]["value"] < 0.999


def test_the_interval_is_that_of_resampled_samples() -> None:
    model = tiny.model()
    texts = make_texts(40)

    row = diagnose(model, texts)["variance", 4]

    streams = [collect_streams(model, [token_ids], 0)[4].numpy() for token_ids in texts]
    generator = np.random.default_rng(1)
    variances: list[float] = []
    for _ in range(600):
        drawn_texts = generator.integers(40, size=40)
        drawn_tokens = np.concatenate([streams[index] for index in drawn_texts])
        variances.append(float(drawn_tokens.var()))
    low, high = np.percentile(variances, [2.5, 97.5])
    assert row["ci_low"] == pytest.approx(low, rel=0.05)
    assert row["ci_high"] == pytest.approx(high, rel=0.05)

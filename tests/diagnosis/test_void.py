"""Void layers, against a plain loop over tokens."""

import numpy as np
import pytest
import torch

from lamina.diagnosis import void
from lamina.diagnosis.void import Void
from lamina.models.structure import layers_of
from tests.diagnosis.examples import rows_by_measure
from tests.given import tiny

N_LAYERS = 5
N_CONTEXT = 3
ALPHA = 0.7


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_void_shares_are_those_of_a_plain_loop(family: str) -> None:
    model = tiny.model(family)
    sequences = [tiny.tokens(1, 5 + index % 6, seed=index)[0].tolist() for index in range(10)]
    samples = tiny.samples(sequences, "choices", N_CONTEXT)

    rows = rows_by_measure(void.diagnose(model, samples, Void(alpha=ALPHA), 40), "void")

    n_void = {measure: np.zeros(N_LAYERS) for measure in void.MEASURES}
    n_tokens = dict.fromkeys(void.MEASURES, 0)
    for token_ids in sequences:
        streams = tiny.stream(model, torch.tensor([token_ids]), layers_of(model))
        for position in range(len(token_ids)):
            norms = np.array([float(stream[0, position].norm()) for stream in streams])
            is_prompt = position < N_CONTEXT
            for measure in ("void", "void_prompt" if is_prompt else "void_response"):
                n_void[measure] += find_void_layers(np.diff(norms))
                n_tokens[measure] += 1

    for measure in void.MEASURES:
        assert (measure, 0) not in rows
        for layer in range(1, N_LAYERS):
            row = rows[measure, layer]
            assert row["value"] == pytest.approx(n_void[measure][layer] / n_tokens[measure])
            assert row["ci_low"] <= row["value"] <= row["ci_high"]
            assert row["n_samples"] == 10
            assert 0 <= row["control"] <= 1


def find_void_layers(growth: np.ndarray) -> np.ndarray:
    """Whether each layer is void for a token; layer 0 has no layer before it and is not."""
    is_void = np.zeros(N_LAYERS, dtype=bool)
    for layer in range(1, N_LAYERS):
        earlier_growth = growth[:layer]
        is_void[layer] = growth[layer] < ALPHA * (earlier_growth.max() - earlier_growth.min())
    return is_void


def test_a_text_has_no_response() -> None:
    samples = tiny.samples(tiny.tokens(4, 8).tolist())

    rows = void.diagnose(tiny.model(), samples, Void(), 40)

    assert {row["measure"] for row in rows} == {"void"}

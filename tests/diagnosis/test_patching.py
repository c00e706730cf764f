"""Activation patching, against plain runs with one stream swapped by a hook."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from lamina.diagnosis import patching
from lamina.diagnosis.patching import Patching, PromptPair
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from tests.diagnosis.examples import rows_by_measure
from tests.given import tiny

N_LAYERS = 5
POSITIONS = {"changed": 1, "between": slice(2, -1), "last": -1}
"""Where the prompts of `make_pairs` differ, what is between there and the end, and the end."""


def make_pairs(count: int = 12) -> list[PromptPair]:
    """Prompts of two lengths that differ at their second token.

    The answers are what the model predicts.
    """
    model = tiny.model()
    pairs: list[PromptPair] = []
    for index in range(count):
        clean = tiny.tokens(1, 6 + index % 2, seed=index)[0].tolist()
        changed_token = (clean[1] + 7 - 4) % 60 + 4
        corrupt = [clean[0], changed_token, *clean[2:]]
        right = int(model(torch.tensor([clean])).logits[0, -1].argmax())
        foil = int(model(torch.tensor([corrupt])).logits[0, -1].argmax())
        if right != foil:
            pairs.append(PromptPair(tuple(clean), tuple(corrupt), right, foil))
    return pairs


def logit_difference(model: PreTrainedModel, token_ids: torch.Tensor, pair: PromptPair) -> float:
    logits = model(token_ids).logits[0, -1]
    return float(logits[pair.right] - logits[pair.foil])


def swap_input(
    layer: torch.nn.Module, position: int | slice, stream: torch.Tensor
) -> RemovableHandle:
    """Let `stream` enter a layer at some positions."""

    def swap(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        entering = args[0] if args else kwargs["hidden_states"]
        entering[0, position] = stream[0, position]

    return layer.register_forward_pre_hook(swap, with_kwargs=True)


def recovered_shares(model: PreTrainedModel, pair: PromptPair) -> np.ndarray:
    """What the clean stream recovers of one pair, (boundaries, `POSITIONS`)."""
    clean = torch.tensor([pair.clean])
    corrupt = torch.tensor([pair.corrupt])
    layers = layers_of(model)
    clean_streams = tiny.stream(model, clean, layers)
    corrupt_difference = logit_difference(model, corrupt, pair)
    gap = logit_difference(model, clean, pair) - corrupt_difference
    shares = np.zeros((N_LAYERS, len(POSITIONS)))
    for boundary in range(N_LAYERS):
        for index, position in enumerate(POSITIONS.values()):
            with swap_input(layers[boundary], position, clean_streams[boundary]):
                patched_difference = logit_difference(model, corrupt, pair)
            shares[boundary, index] = (patched_difference - corrupt_difference) / gap
    return shares


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_patching_is_a_run_with_one_stream_swapped(family: str) -> None:
    model = tiny.model(family)
    pairs = make_pairs()
    options = Patching(file="x", least=1e-3)

    rows = rows_by_measure(patching.diagnose(model, pairs, options, 60), "patching")

    usable_pairs: list[PromptPair] = []
    for pair in pairs:
        clean_difference = logit_difference(model, torch.tensor([pair.clean]), pair)
        corrupt_difference = logit_difference(model, torch.tensor([pair.corrupt]), pair)
        if clean_difference - corrupt_difference >= options.least:
            usable_pairs.append(pair)
    assert rows["usable", None]["value"] == pytest.approx(len(usable_pairs) / len(pairs))
    mean_shares = np.mean([recovered_shares(model, pair) for pair in usable_pairs], axis=0)
    for boundary in range(N_LAYERS):
        for index, name in enumerate(POSITIONS):
            row = rows[f"recovery_{name}", boundary]
            assert row["value"] == pytest.approx(mean_shares[boundary, index], abs=2e-4)
            assert row["n_samples"] == len(usable_pairs)


def test_the_embedding_of_what_differs_is_the_whole_difference() -> None:
    options = Patching(file="x", least=1e-3)

    rows = rows_by_measure(patching.diagnose(tiny.model(), make_pairs(), options, 60), "patching")

    assert rows["recovery_changed", 0]["value"] == pytest.approx(1, abs=1e-4)
    assert rows["noise_changed", 0]["value"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"foil": None}, "line 1: `foil` is missing"),
        ({"corrupt": "w1 w2"}, "`clean` and `corrupt` are both"),
        ({"corrupt": "w1 w2 w3"}, "`clean` has 2 tokens and `corrupt` 3"),
        ({"foil": "w4 w7"}, "begin with the same token"),
    ],
)
def test_a_wrong_pair_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    line = {"clean": "w1 w2", "corrupt": "w1 w3", "right": "w4", "foil": "w5"} | change
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(line) + "\n")

    with pytest.raises(LaminaError, match=message):
        patching.read_samples(file, tiny.tokenizer(), Patching(file="x"))


def test_pairs_that_the_model_does_not_tell_apart_are_refused() -> None:
    with pytest.raises(LaminaError, match="tells none of the"):
        patching.diagnose(tiny.model(), make_pairs(), Patching(file="x", least=1e6), 60)


def test_pairs_longer_than_the_context_are_refused() -> None:
    """Rotary positions would go on beyond it without a word."""
    model = tiny.model(max_position_embeddings=6)
    with pytest.raises(LaminaError, match="diagnosis patching, file: 7 tokens are more than .* 6"):
        patching.diagnose(model, make_pairs(), Patching(file="x"), 60)

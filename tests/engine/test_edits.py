"""Candidates with edits, against transformers models whose list of layers really holds the path."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.engine import sweep
from lamina.engine.candidates import Candidate, grow_tree
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.export.modeling_lamina import damp
from lamina.models.materialise import materialise
from tests.families import configurations, trials
from tests.given import tiny
from tests.given.cut_models import NEAR_TIE, naive_loglikelihoods
from tests.given.edited_models import hold_path
from tests.given.slow import slow_except

# A family with windows, one with a mixer that is no attention, one with experts.
FAMILIES = ("llama", "qwen3", "gemma3_text", "qwen3_next", "mixtral")

# Edits of a model of five layers, and the layers that then run.
PATHS: dict[tuple[str, ...], list[int]] = {
    ("2x2",): [0, 1, 2, 2, 3, 4],
    ("1x3",): [0, 1, 1, 1, 2, 3, 4],
    ("1-3x2",): [0, 1, 2, 3, 1, 2, 3, 4],
    ("3-4x2",): [0, 1, 2, 3, 4, 3, 4],
    ("0-1x2", "3x2"): [0, 1, 0, 1, 2, 3, 3, 4],
    ("1<>2",): [0, 2, 1, 3, 4],
    ("0<>4",): [4, 1, 2, 3, 0],
    ("0<>3", "1-2x2", "4"): [3, 1, 2, 1, 2, 0],
    ("1", "2x2"): [0, 2, 2, 3, 4],
}
# And the blocks of layers in the path that are damped, with r.
DAMPED_PATHS: dict[str, tuple[list[int], dict[range, int]]] = {
    "2x2~": ([0, 1, 2, 2, 3, 4], {range(2, 3): 2, range(3, 4): 2}),
    "1-2x2~": ([0, 1, 2, 1, 2, 3, 4], {range(1, 3): 2, range(3, 5): 2}),
    "3-4x3~": (
        [0, 1, 2, 3, 4, 3, 4, 3, 4],
        {range(3, 5): 3, range(5, 7): 3, range(7, 9): 3},
    ),
}


def build_model(family: str) -> PreTrainedModel:
    if family == "qwen3_next":
        return configurations.model(family)
    return tiny.model(family)


def hold_edits(model: PreTrainedModel, edits: Sequence[str]) -> PreTrainedModel:
    """The model with edits, built by hand."""
    if edits[0] in DAMPED_PATHS:
        return hold_path(model, *DAMPED_PATHS[edits[0]])
    return hold_path(model, PATHS[tuple(edits)])


ALL_EDITS = [*map(list, PATHS), *([edit] for edit in DAMPED_PATHS)]


@pytest.mark.parametrize("family", slow_except(("llama", "gemma3_text", "qwen3_next"), FAMILIES))
def test_candidates_equal_models_that_hold_their_layers(family: str) -> None:
    model = build_model(family)
    samples = trials.samples()
    candidates = {tuple(edits): Candidate(frozenset(edits)) for edits in ALL_EDITS}

    with sweep.open_session(model, samples, 2000, outputs=False) as session:
        session.measure(range(len(samples)), candidates)
    measured = session.scores.loglikelihood

    for edits in candidates:
        expected = naive_loglikelihoods(hold_edits(model, edits), samples)
        difference = np.abs(measured[session.scores.index[edits]] - expected).max()
        assert difference < NEAR_TIE, edits


@pytest.mark.parametrize("family", slow_except(("llama", "gemma3_text", "qwen3_next"), FAMILIES))
@torch.inference_mode()
def test_variants_write_with_a_cache_what_models_that_hold_their_layers_compute(
    family: str,
) -> None:
    """Each layer that runs again has a part of the cache of its own."""
    model = build_model(family)
    prompt = tiny.tokens(1, 9, seed=3)
    for edits in (["1-3x2"], ["0<>3", "1-2x2", "4"], ["1-2x2~"]):
        variant = materialise(model, {"units": edits})
        written = variant.generate(
            prompt,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=3,
            output_logits=True,
            return_dict_in_generate=True,
        )
        held = hold_edits(model, edits)
        expected = held(written.sequences[:, :-1], use_cache=False).logits[0, prompt.shape[1] - 1 :]
        torch.testing.assert_close(torch.cat(written.logits), expected, atol=1e-3, rtol=1e-3)


def test_a_patch_comes_after_layers_that_run_again() -> None:
    """Layer 1 runs again at the depth where the attention of layer 2 is removed and repaired."""
    model = tiny.model()
    samples = trials.samples()
    generator = torch.Generator().manual_seed(0)
    patch = Patch(0.05 * torch.randn(32, 32, generator=generator))
    for edits, boundary in ((["1x2", "2.attention"], (2, 2.5)), (["0-1x2", "2"], (2, 3))):
        candidate = Candidate(frozenset(edits), {boundary: patch})
        with sweep.open_session(model, samples, 2000, outputs=False) as session:
            session.measure(range(len(samples)), {"edited": candidate})
        variant = materialise(model, {"units": edits}, {boundary: patch})
        expected = naive_loglikelihoods(variant, samples)
        assert np.abs(session.scores.loglikelihood[0] - expected).max() < NEAR_TIE


def test_damping_by_one_changes_no_bit() -> None:
    stream, output = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(damp(stream, output, 1), output)


def count_layers(*edit_sets: Sequence[str]) -> int:
    """Layers that run for one token of a model with twelve layers."""
    candidates = [Candidate(frozenset(edits)) for edits in edit_sets]
    return grow_tree(candidates, [], 12, True).layers


def test_a_block_that_runs_again_shares_the_layers_up_to_its_end() -> None:
    assert count_layers([], ["3-5x2"]) == 12 + 3 + 6
    assert count_layers([], ["3-5x2"], ["4-5x2"]) == 12 + (3 + 6) + (2 + 6)


def test_a_damped_block_shares_the_layers_before_it() -> None:
    assert count_layers([], ["3-5x2~"]) == 12 + 2 * 3 + 6


def test_an_exchange_shares_the_layers_before_it() -> None:
    assert count_layers([], ["3<>5"]) == 12 + 9


def test_two_edits_of_one_layer_are_refused() -> None:
    model = tiny.model()
    samples = trials.samples()
    with sweep.open_session(model, samples, 2000) as session:
        for edits in (["2", "1-3x2"], ["1<>3", "3x2"], ["2.mlp", "2x2"]):
            with pytest.raises(LaminaError, match="both change layer"):
                session.measure([0], {"edited": Candidate(frozenset(edits))})

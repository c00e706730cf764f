"""Any set of removed units with patches, on a tree of streams: against models materialised anew."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import sweep
from lamina.engine.candidates import Candidate, grow_tree
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.models.units import all_units
from tests.given import tiny
from tests.given.cut_models import NEAR_TIE, naive_loglikelihoods, random_samples
from tests.given.slow import slow_except

DEPTH = 5
CHANNELS = 32
# Nested sets, several runs, sub-layers together with layers, the first and the last layer.
REMOVED_SETS = [
    ["1"],
    ["1", "2"],
    ["1", "3"],
    ["0", "1", "4"],
    ["3", "4"],
    ["2", "0.attention", "4.mlp"],
    ["0", "2.mlp"],
]
BOTH_SUBLAYERS = ["3.attention", "3.mlp"]


def patched_candidate(removed_units: list[str], seed: int, bias: bool) -> Candidate:
    """A candidate with a random patch of its own at each of its runs."""
    generator = torch.Generator().manual_seed(seed)
    patches: dict[Boundary, Patch] = {}
    for boundary in find_runs(removed_units, DEPTH):
        operator = 0.3 * torch.randn(CHANNELS, CHANNELS, generator=generator) / CHANNELS**0.5
        offset = torch.randn(CHANNELS, generator=generator) if bias else None
        patches[boundary] = Patch(operator, offset)
    return Candidate(frozenset(removed_units), patches)


def measure_candidates(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    tokens: int = 2000,
) -> np.ndarray:
    """Log-likelihoods (candidates, rows), measured in one session."""
    with sweep.open_session(model, list(samples), tokens, outputs=False) as session:
        wanted = {candidate: candidate for candidate in candidates}
        session.measure(range(len(samples)), wanted)
    indices = [session.scores.index[candidate] for candidate in candidates]
    return session.scores.loglikelihood[indices]


def materialise_candidate(model: PreTrainedModel, candidate: Candidate) -> PreTrainedModel:
    plan = {"units": sorted(candidate.edits)}
    return materialise(model, plan, candidate.patches or None)


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_any_set_with_any_patches_equals_the_materialised_variant(family: str) -> None:
    model = tiny.model(family)
    samples = random_samples(1, count=4)
    candidates = [Candidate(frozenset(BOTH_SUBLAYERS))]
    for seed, removed_units in enumerate([*REMOVED_SETS, ["1", *BOTH_SUBLAYERS]]):
        candidates.append(Candidate(frozenset(removed_units)))
        candidates.append(patched_candidate(removed_units, seed, bias=seed % 2 == 0))

    loglikelihoods = measure_candidates(model, samples, candidates)

    for candidate, measured in zip(candidates, loglikelihoods, strict=True):
        variant = materialise_candidate(model, candidate)
        expected = naive_loglikelihoods(variant, samples)
        assert np.abs(measured - expected).max() < NEAR_TIE, candidate.edits


def test_one_set_with_two_patches_is_two_candidates() -> None:
    model = tiny.model()
    samples = random_samples(1, count=4)
    candidates = [patched_candidate(["1"], seed, bias=True) for seed in (0, 1)]

    first, second = measure_candidates(model, samples, candidates)

    assert np.abs(first - second).max() > NEAR_TIE


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision_repairs_as_the_variant_does(dtype: torch.dtype, rounding: float) -> None:
    """One sample at a time, because rows of different lengths round differently in a batch."""
    model = tiny.model().to(dtype)
    samples = random_samples(2, count=3, kinds=("text",))
    candidate = patched_candidate(["1", "3", "4"], 0, bias=True)

    (measured,) = measure_candidates(model, samples, [candidate], tokens=1)

    expected = naive_loglikelihoods(materialise_candidate(model, candidate), samples)
    assert measured == pytest.approx(expected, abs=rounding)


def count_layers(*candidates: Candidate, empty_is_identity: bool = True) -> int:
    """Layers that run for one token of a model with twelve layers."""
    return grow_tree(list(candidates), [], 12, empty_is_identity).layers


def without(*units: str) -> Candidate:
    return Candidate(frozenset(units))


BASE = Candidate()
WITHOUT_EACH_LAYER = [without(str(layer)) for layer in range(12)]
LAYERS_AFTER_EACH = sum(range(12))


def test_equal_candidates_share_all_layers() -> None:
    assert count_layers(BASE) == 12
    assert count_layers(BASE, BASE) == 12
    assert count_layers(without("5")) == 11


def test_a_removal_costs_the_layers_after_it() -> None:
    assert count_layers(BASE, *WITHOUT_EACH_LAYER) == 12 + LAYERS_AFTER_EACH


def test_without_the_base_model_the_shared_stream_ends_before_the_last_layer() -> None:
    assert count_layers(*WITHOUT_EACH_LAYER) == 11 + LAYERS_AFTER_EACH


def test_a_pruned_and_the_base_model_share_the_layers_before_the_removal() -> None:
    assert count_layers(BASE, without("5")) == 5 + 7 + 6


def test_what_two_sets_have_in_common_runs_once() -> None:
    """Without layers 1 and 3, five layers are before layer 7; only one set keeps that one."""
    assert count_layers(without("1", "3", "7"), without("1", "3", "9")) == 5 + 1 + 2 + 1 + 4


def repaired_after(layer: int) -> Candidate:
    """Without one layer, and with a patch of its own."""
    return Candidate(frozenset({str(layer)}), {(layer, layer + 1): Patch(torch.zeros(1, 1))})


def test_patches_split_streams_at_the_end_of_their_run() -> None:
    assert count_layers(repaired_after(4), repaired_after(4)) == 4 + 7 + 7
    # After the last layer, only the head is left to differ.
    assert count_layers(repaired_after(11), repaired_after(11)) == 11


def test_a_layer_without_both_sublayers_is_skipped_if_it_does_nothing() -> None:
    """A norm of the whole stream would still change it."""
    candidate = without("2.attention", "2.mlp")

    assert count_layers(candidate) == 11
    assert count_layers(candidate, empty_is_identity=False) == 12


@pytest.mark.parametrize("tokens", [1, 60, 10_000])
def test_groups_under_a_small_budget_change_nothing(tokens: int) -> None:
    """Every group carries the unpruned model, as a base of comparison, and the current model."""
    model = tiny.model()
    samples = random_samples(5, count=5)
    units = all_units(DEPTH, "mlp", ["2.mlp"])

    at_once = sweep.sweep_units(model, samples, units, ["2.mlp"])
    in_groups = sweep.sweep_units(model, samples, units, ["2.mlp"], token_budget=tokens)

    for column in ("output_kl", "output_norm"):
        expected_means = at_once.output[column] / at_once.output_count
        means = in_groups.output[column] / in_groups.output_count
        np.testing.assert_allclose(means, expected_means, rtol=1e-3)
    np.testing.assert_allclose(in_groups.cosine, at_once.cosine, rtol=1e-4)
    np.testing.assert_allclose(in_groups.loglikelihood, at_once.loglikelihood, atol=1e-4)


class SmallDevice:
    """A hook before a layer that runs out of memory for more than six lines."""

    def __init__(self) -> None:
        self.failed_tensors: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, module: nn.Module, arguments: Any, keywords: Any) -> None:
        # On a GPU that is full, a tensor in a reference cycle would be freed by chance only.
        gc.disable()
        assert all(reference() is None for reference in self.failed_tensors)
        stream = arguments[0] if arguments else keywords["hidden_states"]
        if len(stream) > 6:
            tensor = torch.zeros(1000)
            self.failed_tensors.append(weakref.ref(tensor))
            raise torch.cuda.OutOfMemoryError


def test_out_of_memory_halves_the_pass_after_its_tensors_were_freed() -> None:
    model = tiny.model()
    samples = random_samples(6, count=7)
    units = all_units(DEPTH, "layer")
    expected = sweep.sweep_units(model, samples, units)
    last_layer = layers_of(model)[-1]
    device = SmallDevice()

    with sweep.open_session(model, samples) as session:
        last_layer.register_forward_pre_hook(device, with_kwargs=True)
        try:
            session.sweep(units)
        finally:
            gc.enable()

    assert len(device.failed_tensors) > 3
    loglikelihood = session.scores.loglikelihood
    np.testing.assert_allclose(loglikelihood, expected.loglikelihood, atol=1e-5)
    np.testing.assert_allclose(session.scores.cosine, expected.cosine, rtol=1e-5)


def test_a_failed_session_leaves_the_model_as_it_was() -> None:
    model = tiny.model()
    layers = list(layers_of(model))
    head = model.get_output_embeddings()

    with pytest.raises(LaminaError):
        measure_candidates(model, random_samples(7, count=2), [without("7")])

    layers_afterwards = list(layers_of(model))
    assert len(layers_afterwards) == len(layers)
    for layer, layer_afterwards in zip(layers, layers_afterwards, strict=True):
        assert layer_afterwards is layer
    assert model.get_output_embeddings() is head

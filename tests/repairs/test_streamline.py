"""Streamline trains the layer before a run to return what the run returned.

Against Adam on gradients through the complete model, one text at a time.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options.repairs import Repair
from lamina.repairs import fitting, protocol
from lamina.repairs.methods import streamline
from lamina.repairs.methods.streamline import Streamline
from lamina.repairs.protocol import Fit
from tests.given import tiny
from tests.given.repairs import logits_of
from tests.given.slow import slow_except
from tests.repairs.examples import (
    Text,
    fit_method,
    repaired_variant,
    streams_of,
    texts_of,
    token_weights,
    weighted_norm,
    weighted_sources,
)

RUN: Boundary = (2, 4)
REMOVED_UNITS = ["2", "3"]
N_TOKENS = sum(len(text.token_ids) for text in texts_of(weighted_sources()))


def train_layer(model: PreTrainedModel, **options: Any) -> Fit:
    """Train layer 1 in place of layers 2 and 3."""
    return fit_method(model, Streamline(**options), [RUN])[RUN]


def variant_logits(model: PreTrainedModel, fit: Fit) -> torch.Tensor:
    return logits_of(repaired_variant(model, REMOVED_UNITS, "streamline", {RUN: fit}))


def bare_logits(model: PreTrainedModel) -> torch.Tensor:
    return logits_of(materialise(model, {"units": REMOVED_UNITS}))


def test_without_a_step_it_is_the_cut_model() -> None:
    model = tiny.model()

    fit = train_layer(model, epochs=0)

    assert torch.equal(variant_logits(model, fit), bare_logits(model))
    assert fit.facts["heldout_error"] == fit.facts["heldout_error_before"]
    assert fit.facts["fit_error"] == fit.facts["fit_error_before"]
    assert fit.facts["trained_tokens"] == 0
    assert fit.facts["parameters"] == 0
    assert fit.facts["n_samples"] == 60


@pytest.mark.parametrize(
    ("edit", "is_refused"), [("0<>1", True), ("1x2", True), ("1=math:1", True), ("0x2", False)]
)
@pytest.mark.parametrize("method", ["streamline", "replaceme"])
def test_a_layer_that_the_plan_moves_is_not_changed(
    method: str, edit: str, is_refused: bool
) -> None:
    plan = {"removed": 2, "units": [edit, *REMOVED_UNITS]}

    request = fitting.sort_plans([plan], 5, Repair.from_options({"method": method}))

    assert [(f"'{edit}'" in refusal.reason) for refusal in request.refusals] == [True] * is_refused
    assert (2 in request.plans) is not is_refused


def stream_before_run(model: PreTrainedModel, text: Text) -> torch.Tensor:
    """h_2 (tokens, C) of one text, with its gradient."""
    streams: list[torch.Tensor] = []

    def record(layer: nn.Module, arguments: Any, keywords: Any) -> None:
        streams.append(arguments[0] if arguments else keywords["hidden_states"])

    handle = layers_of(model)[2].register_forward_pre_hook(record, with_kwargs=True)
    model(input_ids=torch.tensor([text.token_ids]), use_cache=False)
    handle.remove()
    return streams[0][0]


def train_by_hand(model: PreTrainedModel, n_epochs: int) -> list[dict[str, torch.Tensor]]:
    """The weights of layer 1 before the first epoch and after each of them.

    Each epoch is one step on the mean squared error of all texts that are not held out.
    """
    trained_model = copy.deepcopy(model)
    layer = layers_of(trained_model)[1]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    texts = texts_of(weighted_sources(), is_heldout=False)
    targets = [torch.tensor(streams[4]) for streams in streams_of(model, texts)]
    n_weighted_numbers = 32 * float(token_weights(texts).sum())
    states = [copy.deepcopy(layer.state_dict())]
    for _ in range(n_epochs):
        optimiser.zero_grad()
        for text, target in zip(texts, targets, strict=True):
            error = (target - stream_before_run(trained_model, text)).square().sum()
            (text.weight * error / n_weighted_numbers).backward()
        optimiser.step()
        states.append(copy.deepcopy(layer.state_dict()))
    return states


@torch.no_grad()
def heldout_error(model: PreTrainedModel, layer_state: dict[str, torch.Tensor]) -> float:
    """‖Y - Ŷ‖ / ‖Y‖ over weighted held-out tokens, for other weights of layer 1."""
    texts = texts_of(weighted_sources(), is_heldout=True)
    weights = token_weights(texts)
    targets = np.concatenate(streams_of(model, texts), axis=1)[4]
    trained_model = copy.deepcopy(model)
    layers_of(trained_model)[1].load_state_dict(layer_state)
    predicted = torch.cat([stream_before_run(trained_model, text) for text in texts])
    error = targets - predicted.double().numpy()
    return weighted_norm(error, weights) / weighted_norm(targets, weights)


@pytest.mark.parametrize("family", slow_except(["gpt2"], ["llama", "gpt2", "bloom"]))
def test_steps_are_those_of_adam_and_the_best_on_held_out_texts_is_kept(family: str) -> None:
    model = tiny.model(family)

    fit = train_layer(model, epochs=3, learning_rate=0.01, batch=1000)

    states = train_by_hand(model, n_epochs=3)
    errors = [heldout_error(model, state) for state in states]
    best = int(np.argmin(errors))
    assert best > 0
    assert fit.facts["heldout_error"] == pytest.approx(errors[best], rel=1e-3)
    assert fit.facts["heldout_error_before"] == pytest.approx(errors[0], rel=1e-4)
    for name, tensor in fit.tensors.items():
        # Where a gradient is next to nothing, Adam takes its sign from rounding.
        is_equal = (tensor - states[best][name]).abs() < 1e-3
        assert is_equal.float().mean() > 0.97, name
    fitted_texts = texts_of(weighted_sources(), is_heldout=False)
    n_fitted_tokens = sum(len(text.token_ids) for text in fitted_texts)
    assert fit.facts["trained_tokens"] == 3 * n_fitted_tokens


@pytest.mark.parametrize(
    "family", slow_except(["gemma3_text", "bloom"], ["llama", "gemma3_text", "gpt2", "bloom"])
)
def test_streams_that_are_kept_are_those_of_a_new_pass(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all runs at once, for one at a time, and not at all.

    The layers of these families differ in how they are called.
    """
    model = tiny.model(family)
    runs: list[Boundary] = [(1, 2), (3, 4)]
    options = Streamline(epochs=2, learning_rate=0.001, batch=7)
    room_for_all_runs = streamline.MAX_KEPT_BYTES
    room_for_one_run = 4 * 32 * 3 * N_TOKENS

    def fit_with_room(max_bytes: int) -> dict[Boundary, Fit]:
        monkeypatch.setattr(streamline, "MAX_KEPT_BYTES", max_bytes)
        return fit_method(model, options, runs)

    expected = fit_with_room(0)
    for max_bytes in (room_for_all_runs, room_for_one_run):
        fits = fit_with_room(max_bytes)

        for run in runs:
            assert fits[run].facts == pytest.approx(expected[run].facts, rel=1e-3)
            for name, tensor in fits[run].tensors.items():
                is_equal = (tensor - expected[run].tensors[name]).abs() < 1e-4
                assert is_equal.float().mean() > 0.97, name


@pytest.mark.parametrize(("max_bytes", "is_kept"), [(1 << 30, True), (0, False)])
def test_the_base_model_runs_once_where_its_streams_are_kept(
    max_bytes: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model()
    n_tokens_run = 0

    def count_tokens(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal n_tokens_run
        n_tokens_run += output[..., 0].numel()

    layers_of(model)[0].mlp.register_forward_hook(count_tokens)
    monkeypatch.setattr(streamline, "MAX_KEPT_BYTES", max_bytes)

    fit_method(model, Streamline(epochs=3, batch=8), [RUN, (3, 5)])

    assert (n_tokens_run < 2 * N_TOKENS) == is_kept


def test_steps_that_only_do_harm_leave_the_layer_as_it_was() -> None:
    model = tiny.model()

    fit = train_layer(model, epochs=2, learning_rate=100.0)

    assert torch.equal(variant_logits(model, fit), bare_logits(model))


def test_training_changes_the_layer_before_the_run_alone() -> None:
    """The base model is not touched, and the variant shares all other weights with it."""
    model = tiny.model()
    base_logits = logits_of(model)
    base_weights = {name: weight.clone() for name, weight in model.named_parameters()}

    fit = train_layer(model, epochs=4, learning_rate=0.01)
    variant = repaired_variant(model, REMOVED_UNITS, "streamline", {RUN: fit})

    assert fit.facts["heldout_error"] < fit.facts["heldout_error_before"]
    assert not torch.allclose(logits_of(variant), bare_logits(model), atol=1e-2)
    assert torch.equal(logits_of(model), base_logits)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, base_weights[name])
    base_storages = {weight.data_ptr() for weight in model.parameters()}
    new_names = {
        name
        for name, weight in variant.named_parameters()
        if weight.data_ptr() not in base_storages
    }
    assert new_names == {f"model.layers.1.{name}" for name in fit.tensors}
    assert protocol.load_method("streamline").as_patch(fit.tensors) is None


def test_runs_are_trained_apart_and_the_seed_decides() -> None:
    model = tiny.model()
    options = Streamline(epochs=2)

    trained_with_another = fit_method(model, options, [(1, 2), RUN])[RUN]
    trained_alone = fit_method(model, options, [RUN])[RUN]

    for name, tensor in trained_with_another.tensors.items():
        assert torch.equal(tensor, trained_alone.tensors[name])


def test_a_run_without_a_layer_before_it_is_refused() -> None:
    with pytest.raises(LaminaError, match=r"layer 0 has none before it.*protect: \[0\]"):
        fit_method(tiny.model(), Streamline(), [(0, 2)])


def test_quantised_weights_are_refused() -> None:
    model = tiny.model("bitnet")
    model.config.quantization_config = {"quant_method": "bitnet"}
    message = "streamline trains weights, but those of this model are quantised"

    with pytest.raises(LaminaError, match=message):
        fit_method(model, Streamline(), [RUN])

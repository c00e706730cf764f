"""The engine proves itself on the model at hand: planted faults are refused, or do no harm.

Expected numbers are from one plain forward pass for each row.
"""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import forking, packing, sweep
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from tests.families import configurations
from tests.given import tiny
from tests.given.cut_models import token_sequences

visible_tokens = packing.PackedBatch.visible_tokens


def draw_tokens(length: int, seed: int) -> tuple[int, ...]:
    return tuple(tiny.tokens(1, length, seed=seed)[0].tolist())


def two_questions() -> list[Sample]:
    """Two choices share a context that is longer than the window of the tiny Mistral."""
    samples: list[Sample] = []
    for index in range(2):
        context = draw_tokens(11 + 4 * index, seed=index)
        first_choice = Row(context, draw_tokens(2, seed=9), 4)
        second_choice = Row(context, draw_tokens(3, seed=10), 4)
        samples.append(Sample(index, "choices", index, (first_choice, second_choice), str(index)))
    return samples


def return_input(module: Any, inputs: Any, output: Any) -> Any:
    """A hook after a layer that undoes it."""
    if isinstance(output, tuple):
        return (inputs[0], *output[1:])
    return inputs[0]


@torch.no_grad()
def plain_loglikelihoods(model: PreTrainedModel, bypassed_layer: int | None = None) -> np.ndarray:
    """Log-likelihood of every row of the questions, by one plain forward pass each."""
    hooks = []
    if bypassed_layer is not None:
        layer = layers_of(model)[bypassed_layer]
        hooks.append(layer.register_forward_hook(return_input))
    loglikelihoods: list[float] = []
    for sample in two_questions():
        for row in sample.rows:
            token_ids = torch.tensor([row.context + row.continuation])
            logprobs = model(input_ids=token_ids, use_cache=False).logits[0].log_softmax(-1)
            continuation_logprobs = logprobs[len(row.context) - 1 : -1]
            continuation = torch.tensor(row.continuation)[:, None]
            loglikelihoods.append(float(continuation_logprobs.gather(1, continuation).sum()))
    for hook in hooks:
        hook.remove()
    return np.array(loglikelihoods)


def plant_fault(model: PreTrainedModel, fault: type) -> PreTrainedModel:
    """Mix a fault into the class of each layer, so that a copy of the model has it too."""
    for layer_index, layer in enumerate(layers_of(model)):
        layer.__class__ = type("FaultyLayer", (fault, type(layer)), {})
        layer.layer_index = layer_index
        layer.config = model.config
    return model


class ReadsPreviousLayer:
    """Adds what the previous layer returned."""

    outputs: dict[int, torch.Tensor] = {}

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        previous_output = self.outputs.get(self.layer_index - 1)
        self.outputs[self.layer_index] = output
        if previous_output is None or previous_output.shape != output.shape:
            return output
        return output + 0.1 * previous_output


class CountsCalls:
    """Scales its output by the number of its calls."""

    n_calls = 0

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.n_calls += 1
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        return hidden + output * (1 + self.n_calls / 100)


class ScalesByDepth:
    """Scales its contribution by the number of layers."""

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        return hidden + (output - hidden) * self.config.num_hidden_layers**-0.5


class LooksAhead:
    """Adds the output at the next position."""

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        next_output = torch.cat([output[:, 1:], output[:, -1:]], dim=1)
        return output + 0.1 * next_output


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ReadsPreviousLayer, "cannot be (cut|swept)"),
        (CountsCalls, "family 'llama'"),
        (
            ScalesByDepth,
            "cannot be cut: without layers 1 and 4 .*depend on their index, on the depth or on",
        ),
        (LooksAhead, "is not causal.*causal decoder"),
    ],
)
def test_a_layer_that_does_more_than_a_layer_is_refused(fault: type, message: str) -> None:
    model = plant_fault(tiny.model(), fault)

    with pytest.raises(LaminaError, match=message):
        sweep.sweep_units(model, two_questions(), ["0"])


def visible_and_next_token(batch: packing.PackedBatch, window: int | None = None) -> torch.Tensor:
    """A wrong mask: it shows one token ahead."""
    visible = visible_tokens(batch, window)
    return visible | visible.roll(1, dims=-1)


@pytest.mark.parametrize("fault", ["mask", "window"])
def test_no_wrong_mask_is_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny.model("mistral")
    if fault == "mask":
        monkeypatch.setattr(packing.PackedBatch, "visible_tokens", visible_and_next_token)
    else:
        monkeypatch.setattr(forking, "attention_windows", lambda model: [7] * 5)

    scores = sweep.sweep_units(model, two_questions(), ["1"])

    assert "one row per choice" in caplog.text
    assert "off by" in caplog.text
    expected = [plain_loglikelihoods(model), plain_loglikelihoods(model, 1)]
    assert np.allclose(scores.loglikelihood, expected, atol=1e-4)


def test_a_model_that_looks_ahead_gives_no_activations() -> None:
    with pytest.raises(LaminaError, match="is not causal"):
        capture_similarities(configurations.model("bert"), token_sequences(two_questions()))


def test_a_model_is_proven_once() -> None:
    """A fault that is planted after the first sweep is not noticed by the second one."""
    model = tiny.model()
    sweep.sweep_units(model, two_questions(), ["0"])
    plant_fault(model, LooksAhead)

    sweep.sweep_units(model, two_questions(), ["1"])


@pytest.mark.parametrize("family", ["bloom", "gpt2", "gemma2"])
@pytest.mark.parametrize("fixed", [False, True])
def test_rows_in_batches_of_fixed_or_any_size_have_the_numbers_of_each_alone(
    family: str, fixed: bool
) -> None:
    model = tiny.model(family)
    with sweep.open_session(model, two_questions()) as session:
        session.share(False, fixed)

        session.sweep(["1", "3"])

    expected = [
        plain_loglikelihoods(model),
        plain_loglikelihoods(model, 1),
        plain_loglikelihoods(model, 3),
    ]
    assert np.allclose(session.scores.loglikelihood, expected, atol=1e-4)


@pytest.mark.parametrize(("family", "shares"), [("bloom", False), ("gpt2", True), ("gemma2", True)])
def test_choices_share_their_context_except_with_alibi(family: str, shares: bool) -> None:
    with sweep.open_session(tiny.model(family), two_questions()) as session:
        assert (session.windows is not None) == shares

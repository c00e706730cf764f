"""The engine proves itself on the model at hand: planted faults are refused, or the numbers are the plain model's."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import forking, packing, proof, sweep
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from tests.families import configurations
from tests.given import tiny


def questions() -> list[Sample]:
    """Two of two choices that share a context longer than the window of the tiny Mistral."""
    found = []
    for number in range(2):
        context = tuple(tiny.tokens(1, 11 + 4 * number, seed=number)[0].tolist())
        rows = [
            Row(context, tuple(tiny.tokens(1, 2 + n, seed=9 + n)[0].tolist()), 4) for n in range(2)
        ]
        found.append(Sample(number, "choices", number, tuple(rows), str(number)))
    return found


@torch.no_grad()
def loglikelihoods(model: PreTrainedModel, without: int | None = None) -> np.ndarray:
    """Of every row, one plain forward pass each, by a hook that makes a layer hand its input on."""

    def handing_on(module: Any, args: Any, output: Any) -> Any:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    found, handles = [], []
    if without is not None:
        handles.append(layers_of(model)[without].register_forward_hook(handing_on))
    for row in (row for sample in questions() for row in sample.rows):
        ids = torch.tensor([row.context + row.continuation])
        told = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[
            0, len(row.context) - 1 : -1
        ]
        found.append(float(told.gather(-1, torch.tensor(row.continuation)[:, None]).sum()))
    for handle in handles:
        handle.remove()
    return np.array(found)


def faulty(model: PreTrainedModel, fault: type) -> PreTrainedModel:
    """The model with a fault mixed into the class of each layer; a copy of the model has it too."""
    for number, layer in enumerate(layers_of(model)):
        layer.__class__ = type("Faulty", (fault, type(layer)), {})
        layer.number, layer.config = number, model.config
    return model


class ReadsThePrevious:
    """Adds what the layer before gave."""

    given: dict[int, torch.Tensor] = {}

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        before = self.given.get(self.number - 1)
        self.given[self.number] = output
        return output if before is None or before.shape != output.shape else output + 0.1 * before


class CountsItsCalls:
    calls = 0

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls += 1
        return hidden + super().forward(hidden, *args, **kwargs) * (1 + self.calls / 100)  # type: ignore[misc]


class ScaledByDepth:
    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        return hidden + (output - hidden) * self.config.num_hidden_layers**-0.5


class LooksAhead:
    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = super().forward(hidden, *args, **kwargs)  # type: ignore[misc]
        return output + 0.1 * torch.cat([output[:, 1:], output[:, -1:]], dim=1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ReadsThePrevious, "cannot be (cut|swept)"),
        (CountsItsCalls, "family 'llama'"),
        (
            ScaledByDepth,
            "cannot be cut: without layers 1 and 4 .*depend on their number, on the depth or on each",
        ),
        (LooksAhead, "looks ahead.*causal decoder"),
    ],
)
def test_a_layer_that_does_more_than_a_layer_is_refused(fault: type, message: str) -> None:
    with pytest.raises(LaminaError, match=message):
        sweep.sweep_units(faulty(tiny.model(), fault), questions(), ["0"])


def too_wide(batch: packing.PackedBatch, window: int | None = None) -> torch.Tensor:
    """A mask that sees one token ahead."""
    seen = visible(batch, window)
    return seen | seen.roll(1, dims=-1)


visible = packing.PackedBatch.visible_tokens


@pytest.mark.parametrize("fault", ["mask", "window"])
def test_no_wrong_mask_is_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny.model("mistral")
    if fault == "mask":
        monkeypatch.setattr(packing.PackedBatch, "visible_tokens", too_wide)
    else:
        monkeypatch.setattr(forking, "attention_windows", lambda model: [7] * 5)
    scores = sweep.sweep_units(model, questions(), ["1"])
    assert "one row per choice" in caplog.text and "off by" in caplog.text
    assert np.allclose(
        scores.loglikelihood, [loglikelihoods(model), loglikelihoods(model, 1)], atol=1e-4
    )


def test_a_model_that_looks_ahead_gives_no_activations() -> None:
    with pytest.raises(LaminaError, match="looks ahead"):
        capture_similarities(
            configurations.model("bert"), [sample.sequence() for sample in questions()]
        )


def test_a_model_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    sweep.sweep_units(model, questions(), ["0"])
    monkeypatch.setattr(proof.Proof, "_find_difference", lambda *_: pytest.fail("proven again"))
    sweep.sweep_units(model, questions(), ["1"])


@pytest.mark.parametrize("family", ["bloom", "gpt2", "gemma2"])
def test_one_row_and_a_batch_of_rows_give_the_same(family: str) -> None:
    model = tiny.model(family)
    with sweep.open_session(model, questions()) as session:
        assert (session.windows is None) == (family == "bloom")
        found = {}
        for fixed in (False, True):
            session.share(False, fixed)
            session.sweep(["1", "3"])
            found[fixed] = session.scores.loglikelihood.copy()
    assert np.allclose(found[True], found[False], atol=1e-5)
    assert np.allclose(
        found[True], [loglikelihoods(model), *(loglikelihoods(model, n) for n in (1, 3))], atol=1e-4
    )

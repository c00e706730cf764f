"""Each published repair equals its paper's formula on dense streams, does to a model what it says, and is refused where
a family has no place for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.config.recoveries import LinearPatch
from lamina.models import export
from lamina.models.structure import layers_of
from lamina.models.variant import Boundary, materialise
from lamina.recovery import linearpatch, protocol
from lamina.recovery.protocol import Fit, Fitted, Source
from lamina.streams import sources as over
from tests.unit import tiny

LENGTHS = (5, 9, 14, 7, 11, 3, 12, 8, 10, 6, 13, 9, 4, 12, 15, 8, 7, 11, 10, 9)
WEIGHTS = (1.0, 0.25)


def sources() -> list[Source]:
    """Two calibrations of token sequences of different lengths, the second of less weight."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(4, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in 3 * LENGTHS]
    return [Source(texts[:40], WEIGHTS[0]), Source(texts[40:], WEIGHTS[1])]


def streams(model: nn.Module, held: bool | None = None) -> list[tuple[float, list[np.ndarray]]]:
    """Weight and h_0 … h_L (T, C) of every sample, or of those that are held out or not: one forward each."""
    found = []
    for source in sources():
        for ids, out in zip(source.sequences, over.split(len(source.sequences), 0), strict=True):
            if held in (None, out):
                h = tiny.stream(model, torch.tensor([ids]), layers_of(model))
                found.append((source.weight, [part[0].double().numpy() for part in h]))
    return found


def fits(model: PreTrainedModel, options: Any, boundaries: list[Boundary]) -> dict[Boundary, Fit]:
    method = protocol.method(options.method)
    collected = method.collect(model, sources(), boundaries, options, 0)
    return {boundary: method.fit(statistics, options) for boundary, statistics in collected}


def repaired(model: PreTrainedModel, units: list[str], options: Any, boundaries: list[Boundary]) -> PreTrainedModel:
    found = fits(model, options, boundaries)
    return materialise(model, {"units": units}, {b: Fitted(options.method, fit.tensors) for b, fit in found.items()})


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=tiny.tokens(), use_cache=False).logits


def relative(ours: Any, wanted: Any) -> float:
    ours, wanted = np.asarray(ours, dtype=float), np.asarray(wanted, dtype=float)
    return float(np.linalg.norm(ours - wanted) / np.linalg.norm(wanted))


def error(samples: list[tuple[float, list[np.ndarray]]], end: int, predicted: list[np.ndarray]) -> float:
    """‖Y - Ŷ‖ / ‖Y‖ over weighted tokens."""
    left = sum(weight * ((h[end] - guess) ** 2).sum() for (weight, h), guess in zip(samples, predicted, strict=True))
    return float(np.sqrt(left / sum(weight * (h[end] ** 2).sum() for weight, h in samples)))


@pytest.mark.parametrize("form", ["diag", "rotated"])
@pytest.mark.parametrize("channels", [32, 24])
def test_linearpatch_is_the_mean_ratio_of_the_samples_after_the_rotation(form: str, channels: int) -> None:
    model = tiny.model(hidden_size=channels, num_attention_heads=4, head_dim=8)
    width = {32: 32, 24: 8}[channels]
    block = scipy.linalg.hadamard(width) / np.sqrt(width)
    rotation = np.eye(channels) if form == "diag" else np.kron(np.eye(channels // width), block)

    def operator(samples: Any) -> np.ndarray:
        ratios = [np.abs(h[4] @ rotation).mean(0) / np.abs(h[1] @ rotation).mean(0) for _, h in samples]
        scale = np.average(ratios, axis=0, weights=[weight for weight, _ in samples])
        return rotation @ np.diag(scale) @ rotation.T

    fit = fits(model, LinearPatch(form=form), [(1, 4), (2, 3)])[1, 4]
    ours = linearpatch.as_patch(fit.tensors).operator.double().numpy() + np.eye(channels)
    assert relative(ours, operator(streams(model))) < 1e-5
    seen = operator(streams(model, held=False))
    assert relative(fit.validated["operator"].double().numpy() + np.eye(channels), seen) < 1e-5
    for held, name in ((False, "fit_error"), (True, "heldout_error")):
        samples = streams(model, held)
        assert fit.facts[name] == pytest.approx(error(samples, 4, [h[1] @ seen for _, h in samples]), rel=1e-4)
        assert fit.facts[f"{name}_before"] == pytest.approx(error(samples, 4, [h[1] for _, h in samples]), rel=1e-4)
    assert fit.facts["n_samples"] == 60 and fit.facts["n_tokens"] == 3 * sum(LENGTHS)


def test_a_rotation_sees_what_channels_do_not() -> None:
    """A stream that turns in a plane keeps its mean size per channel; Q is orthonormal, and P is symmetric."""
    block = linearpatch.hadamard(24)
    assert block.shape == (8, 8) and torch.allclose(block @ block, torch.eye(8, dtype=torch.float64))
    model = tiny.model()
    plain, rotated = (fits(model, LinearPatch(form=form), [(1, 4)])[1, 4] for form in ("diag", "rotated"))
    assert torch.equal(plain.tensors["operator"], torch.diag(torch.diagonal(plain.tensors["operator"])))
    operator = rotated.tensors["operator"]
    assert float((operator - torch.diag(torch.diagonal(operator))).norm()) > 1e-3
    torch.testing.assert_close(operator, operator.T)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_linearpatch_acts_at_the_boundary_and_comes_back_from_its_export(family: str, tmp_path: Path) -> None:
    model = tiny.model(family)
    variant = repaired(model, ["1", "3", "4"], LinearPatch(), [(1, 2), (3, 5)])
    fit = fits(model, LinearPatch(), [(1, 2), (3, 5)])

    def scaling(boundary: Boundary) -> Any:
        operator = fit[boundary].tensors["operator"] + torch.eye(32)

        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            stream = args[0] if args else kwargs["hidden_states"]
            kept = stream if boundary is None else stream @ operator
            return (kept, *output[1:]) if isinstance(output, tuple) else kept

        return hook

    def skipping(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        stream = args[0] if args else kwargs["hidden_states"]
        return (stream, *output[1:]) if isinstance(output, tuple) else stream

    layers = layers_of(model)
    handles = [layers[1].register_forward_hook(scaling((1, 2)), with_kwargs=True)]
    handles.append(layers[3].register_forward_hook(skipping, with_kwargs=True))
    handles.append(layers[4].register_forward_hook(scaling((3, 5)), with_kwargs=True))
    expected = logits(model)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(logits(variant), expected, atol=1e-4, rtol=1e-4)
    assert export.save(variant, tmp_path / "export") == "code"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "export", trust_remote_code=True)
    torch.testing.assert_close(logits(again), logits(variant), atol=1e-6, rtol=1e-6)

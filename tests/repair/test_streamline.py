"""Streamline trains the layer before a run to give what the run gave, and leaves the model as deep as the plan says."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from lamina.engine import sources as over
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repair import protocol
from lamina.repair.methods import streamline
from lamina.repair.methods.streamline import Streamline
from lamina.repair.protocol import Fit, Fitted
from tests.given import tiny
from tests.repair.test_published_repairs import error, fits, logits, sources, streams

RUN = (2, 4)


def trained(model: Any, **options: Any) -> Fit:
    return fits(model, Streamline(**options), [RUN])[RUN]


def variant(model: Any, fit: Fit) -> Any:
    return materialise(model, {"units": ["2", "3"]}, {RUN: Fitted("streamline", fit.tensors)})


def test_with_no_step_it_is_the_model_as_it_was_cut() -> None:
    model = tiny.model()
    fit = trained(model, epochs=0)
    assert torch.equal(
        logits(variant(model, fit)), logits(materialise(model, {"units": ["2", "3"]}))
    )
    facts = fit.facts
    assert (
        facts["heldout_error"] == facts["heldout_error_before"]
        and facts["fit_error"] == facts["fit_error_before"]
    )
    assert facts["trained_tokens"] == 0 and facts["parameters"] == 0 and facts["n_samples"] == 60


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_steps_are_those_of_adam_on_the_mean_squared_error_of_the_stream(family: str) -> None:
    """Against gradients through the whole model, one sample at a time, of which only that layer is trained."""
    model = tiny.model(family)
    fit = trained(model, epochs=3, learning_rate=0.01, batch=1000)
    other = copy.deepcopy(model)
    layer = layers_of(other)[1]
    seen = [
        (weight, h) for (weight, h), out in zip(streams(model), flags(), strict=True) if not out
    ]
    told = [ids for ids, out in zip(texts(), flags(), strict=True) if not out]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    entries = 32 * sum(weight * len(h[0]) for weight, h in seen)
    states = [copy.deepcopy(layer.state_dict())]
    for _ in range(3):
        optimiser.zero_grad()
        for ids, (weight, h) in zip(told, seen, strict=True):
            given = leaving(other, ids)
            (weight * (torch.tensor(h[4]) - given).square().sum() / entries).backward()
        optimiser.step()
        states.append(copy.deepcopy(layer.state_dict()))
    # The best of the four states by held-out error.
    unseen = streams(model, held=True)
    held = [ids for ids, out in zip(texts(), flags(), strict=True) if out]
    left = []
    for state in states:
        layer.load_state_dict(state)
        with torch.no_grad():
            guess = [leaving(other, ids).double().numpy() for ids in held]
        left.append(error(unseen, 4, guess))
    best = int(np.argmin(left))
    assert best > 0 and fit.facts["heldout_error"] == pytest.approx(left[best], rel=1e-3)
    assert fit.facts["heldout_error_before"] == pytest.approx(left[0], rel=1e-4)
    for name, tensor in fit.tensors.items():
        # Where a gradient is next to nothing, Adam takes its sign from rounding.
        assert ((tensor - states[best][name]).abs() < 1e-3).float().mean() > 0.97, name
    assert fit.facts["trained_tokens"] == 3 * sum(len(h[0]) for _, h in seen)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "bloom"])
def test_streams_that_are_kept_are_those_of_a_new_pass(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all runs at once, for one at a time, and not at all; layers differ in how they are called."""
    model, runs = tiny.model(family), [(1, 2), (3, 4)]
    options = Streamline(epochs=2, learning_rate=0.001, batch=7)
    found = []
    for max_bytes in (streamline.MAX_KEPT_BYTES, 4 * 32 * 3 * tokens(), 0):
        monkeypatch.setattr(streamline, "MAX_KEPT_BYTES", max_bytes)
        found.append(fits(model, options, runs))
    for other in found[:2]:
        for run in runs:
            assert other[run].facts == pytest.approx(found[2][run].facts, rel=1e-3)
            for name, tensor in other[run].tensors.items():
                assert (
                    (tensor - found[2][run].tensors[name]).abs() < 1e-4
                ).float().mean() > 0.97, name


@pytest.mark.parametrize(("max_bytes", "passes"), [(1 << 30, 1), (0, None)])
def test_the_base_model_runs_once_where_its_streams_are_kept(
    max_bytes: int, passes: int | None, monkeypatch: Any
) -> None:
    model = tiny.model()
    seen: list[int] = []
    layers_of(model)[0].mlp.register_forward_hook(
        lambda module, args, output: seen.append(output[..., 0].numel())
    )
    monkeypatch.setattr(streamline, "MAX_KEPT_BYTES", max_bytes)
    fits(model, Streamline(epochs=3, batch=8), [RUN, (3, 5)])
    assert (sum(seen) < 2 * tokens()) == (passes == 1)


def tokens() -> int:
    return sum(map(len, texts()))


def leaving(model: Any, ids: list[int]) -> torch.Tensor:
    """h_2 (T, C), with its gradient."""
    found: list[torch.Tensor] = []
    handle = layers_of(model)[2].register_forward_pre_hook(
        lambda module, args, kwargs: found.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    model(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    return found[0][0]


def texts() -> list[Any]:
    return [ids for source in sources() for ids in source.sequences]


def flags() -> list[bool]:
    return [out for flags in over.draw_held_out(sources(), 0) for out in flags]


def test_the_best_state_is_kept_and_the_base_model_is_not_touched() -> None:
    model = tiny.model()
    before, weights = (
        logits(model),
        {name: weight.clone() for name, weight in model.named_parameters()},
    )
    # Steps as large as these only do harm: what is kept is a copy of the layer before the first.
    fit = trained(model, epochs=2, learning_rate=100.0)
    assert torch.equal(
        logits(variant(model, fit)), logits(materialise(model, {"units": ["2", "3"]}))
    )
    fit = trained(model, epochs=4, learning_rate=0.01)
    assert fit.facts["heldout_error"] < fit.facts["heldout_error_before"]
    repaired = variant(model, fit)
    assert not torch.allclose(
        logits(repaired), logits(materialise(model, {"units": ["2", "3"]})), atol=1e-2
    )
    assert torch.equal(logits(model), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    held = {parameter.data_ptr() for parameter in model.parameters()}
    fresh = {name for name, weight in repaired.named_parameters() if weight.data_ptr() not in held}
    assert fresh == {f"model.layers.1.{name}" for name in fit.tensors}
    assert protocol.load_method("streamline").as_patch(fit.tensors) is None


def test_the_seed_decides_and_runs_are_trained_apart() -> None:
    model, options = tiny.model(), Streamline(epochs=2)
    runs: list[Boundary] = [(1, 2), RUN]
    both, again = fits(model, options, runs)[RUN].tensors, fits(model, options, [RUN])[RUN].tensors
    assert all(torch.equal(both[name], again[name]) for name in both)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(LaminaError, match=r"before layer 0 there is none.*protect: \[0\]"):
        fits(tiny.model(), Streamline(), [(0, 2)])
    quantised = tiny.model("bitnet")
    quantised.config.quantization_config = {"quant_method": "bitnet"}
    with pytest.raises(
        LaminaError, match=r"streamline trains weights, and those of this model are quantised"
    ):
        fits(quantised, Streamline(), [RUN])

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

from lamina.engine import sources as over
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.export import save
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repair import protocol
from lamina.repair.methods import linearpatch
from lamina.repair.methods.linearpatch import LinearPatch
from lamina.repair.methods.replaceme import ReplaceMe
from lamina.repair.protocol import Fit, Fitted
from tests.given import tiny
from tests.repair.test_repairs import logits

LENGTHS = (5, 9, 14, 7, 11, 3, 12, 8, 10, 6, 13, 9, 4, 12, 15, 8, 7, 11, 10, 9)
WEIGHTS = (1.0, 0.25)


def sources() -> list[Source]:
    """Two calibrations of token sequences of different lengths, the second of less weight."""
    generator = torch.Generator().manual_seed(0)
    texts = [
        torch.randint(4, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in 3 * LENGTHS
    ]
    return [Source(texts[:40], WEIGHTS[0]), Source(texts[40:], WEIGHTS[1])]


def streams(model: nn.Module, held: bool | None = None) -> list[tuple[float, list[np.ndarray]]]:
    """Weight and h_0 … h_L (T, C) of every sample, or of those that are held out or not: one forward each."""
    found = []
    for source, flags in zip(sources(), over.draw_held_out(sources(), 0), strict=True):
        for ids, out in zip(source.sequences, flags, strict=True):
            if held in (None, out):
                h = tiny.stream(model, torch.tensor([ids]), layers_of(model))
                found.append((source.weight, [part[0].double().numpy() for part in h]))
    return found


def fits(model: PreTrainedModel, options: Any, boundaries: list[Boundary]) -> dict[Boundary, Fit]:
    method = protocol.load_method(options.method)
    collected = method.collect(model, sources(), boundaries, options, 0)
    return {boundary: method.fit(statistics, options) for boundary, statistics in collected}


def repaired(
    model: PreTrainedModel, units: list[str], options: Any, boundaries: list[Boundary]
) -> PreTrainedModel:
    found = fits(model, options, boundaries)
    return materialise(
        model,
        {"units": units},
        {b: Fitted(options.method, fit.tensors) for b, fit in found.items()},
    )


def relative(ours: Any, wanted: Any) -> float:
    ours, wanted = np.asarray(ours, dtype=float), np.asarray(wanted, dtype=float)
    return float(np.linalg.norm(ours - wanted) / np.linalg.norm(wanted))


def error(
    samples: list[tuple[float, list[np.ndarray]]], end: int, predicted: list[np.ndarray]
) -> float:
    """‖Y - Ŷ‖ / ‖Y‖ over weighted tokens."""
    left = sum(
        weight * ((h[end] - guess) ** 2).sum()
        for (weight, h), guess in zip(samples, predicted, strict=True)
    )
    return float(np.sqrt(left / sum(weight * (h[end] ** 2).sum() for weight, h in samples)))


def hooked(
    model: PreTrainedModel, changes: dict[int, Any], modules: dict[nn.Module, Any]
) -> torch.Tensor:
    """Logits of the unpruned model whose layers give `change(entering stream)`, and modules `change(their output)`."""

    def instead(change: Any) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            stream = change(args[0] if args else kwargs["hidden_states"])
            return (stream, *output[1:]) if isinstance(output, tuple) else stream

        return hook

    def after(change: Any) -> Any:
        return lambda module, args, output: change(output)

    layers = layers_of(model)
    handles = [
        layers[n].register_forward_hook(instead(change), with_kwargs=True)
        for n, change in changes.items()
    ]
    handles += [module.register_forward_hook(after(change)) for module, change in modules.items()]
    found = logits(model)
    for handle in handles:
        handle.remove()
    return found


def same(stream: torch.Tensor) -> torch.Tensor:
    return stream


@pytest.mark.parametrize("form", ["diag", "rotated"])
@pytest.mark.parametrize("channels", [32, 24])
def test_linearpatch_is_the_mean_ratio_of_the_samples_after_the_rotation(
    form: str, channels: int
) -> None:
    model = tiny.model(hidden_size=channels, num_attention_heads=4, head_dim=8)
    width = {32: 32, 24: 8}[channels]
    block = scipy.linalg.hadamard(width) / np.sqrt(width)
    rotation = np.eye(channels) if form == "diag" else np.kron(np.eye(channels // width), block)

    def operator(samples: Any) -> np.ndarray:
        ratios = [
            np.abs(h[4] @ rotation).mean(0) / np.abs(h[1] @ rotation).mean(0) for _, h in samples
        ]
        scale = np.average(ratios, axis=0, weights=[weight for weight, _ in samples])
        return rotation @ np.diag(scale) @ rotation.T

    fit = fits(model, LinearPatch(form=form), [(1, 4), (2, 3)])[1, 4]
    ours = linearpatch.as_patch(fit.tensors).operator.double().numpy() + np.eye(channels)
    assert relative(ours, operator(streams(model))) < 1e-5
    seen = operator(streams(model, held=False))
    assert relative(fit.validated["operator"].double().numpy() + np.eye(channels), seen) < 1e-5
    for held, name in ((False, "fit_error"), (True, "heldout_error")):
        samples = streams(model, held)
        assert fit.facts[name] == pytest.approx(
            error(samples, 4, [h[1] @ seen for _, h in samples]), rel=1e-4
        )
        assert fit.facts[f"{name}_before"] == pytest.approx(
            error(samples, 4, [h[1] for _, h in samples]), rel=1e-4
        )
    assert fit.facts["n_samples"] == 60 and fit.facts["n_tokens"] == 3 * sum(LENGTHS)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_linearpatch_acts_at_the_boundary_and_comes_back_from_its_export(
    family: str, tmp_path: Path
) -> None:
    model = tiny.model(family)
    variant = repaired(model, ["1", "3", "4"], LinearPatch(), [(1, 2), (3, 5)])
    fit = fits(model, LinearPatch(), [(1, 2), (3, 5)])
    scaled = {b: found.tensors["operator"] + torch.eye(32) for b, found in fit.items()}
    changes = {1: lambda h: h @ scaled[1, 2], 3: same, 4: lambda h: h @ scaled[3, 5]}
    expected = hooked(model, changes, {})
    torch.testing.assert_close(logits(variant), expected, atol=1e-4, rtol=1e-4)
    assert save.save_variant(variant, tmp_path / "export") == "code"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "export", trust_remote_code=True)
    torch.testing.assert_close(logits(again), logits(variant), atol=1e-6, rtol=1e-6)


# The module whose output an MLP adds to the stream.
DOWN = {
    "gpt2": "mlp.c_proj",
    "opt": "fc2",
    **dict.fromkeys(("bloom", "falcon", "gpt_neox"), "mlp.dense_4h_to_h"),
    **dict.fromkeys(("bitnet", "llama", "mistral", "phi3", "qwen2", "qwen3"), "mlp.down_proj"),
}
NORMED = ("gemma2", "gemma3_text", "olmo2")


def mlp_outputs(model: PreTrainedModel, family: str, layer: int) -> list[np.ndarray]:
    """A (T, C) of every sample: one forward each."""
    found: list[np.ndarray] = []
    module = layers_of(model)[layer].get_submodule(DOWN[family])
    handle = module.register_forward_hook(
        lambda module, args, output: found.append(
            output.detach().clone().reshape(-1, 32).double().numpy()
        )
    )
    with torch.no_grad():
        for source in sources():
            for ids in source.sequences:
                model(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    return found


@pytest.mark.parametrize("family", sorted(DOWN))
def test_replaceme_is_the_least_squares_map_of_the_mlp_before_the_run(family: str) -> None:
    model = tiny.model(family)
    every, given = streams(model), mlp_outputs(model, family, 1)
    root = np.concatenate(
        [np.full((len(a), 1), weight**0.5) for a, (weight, _) in zip(given, every, strict=True)]
    )
    a, gap = np.concatenate(given), np.concatenate([h[4] - h[2] for _, h in every])
    penalty = np.sqrt(1e-3 * ((root * a) ** 2).sum() / 32) * np.eye(32)
    # Towards I: the ridge weighs T - I, as further rows of which the map leaves nothing.
    system, target = np.vstack([root * a, penalty]), np.vstack([root * (a + gap), penalty])
    expected, *_ = np.linalg.lstsq(system, target, rcond=None)
    fit = fits(model, ReplaceMe(ridge=1e-3), [(2, 4)])[2, 4]
    ours = a @ (fit.tensors["operator"].double().numpy() + np.eye(32))
    assert relative(ours, a @ expected) < 1e-5
    assert (
        fit.facts["parameters"] == 0
        and protocol.load_method("replaceme").as_patch(fit.tensors) is None
    )


def test_the_cosine_form_of_replaceme_is_adam_on_the_cosine_distance_of_the_tokens() -> None:
    model, options = tiny.model(), ReplaceMe(objective="cosine", epochs=15, learning_rate=0.003)
    fit = fits(model, options, [(1, 2), (2, 4)])[2, 4]
    flags = np.array([out for flags in over.draw_held_out(sources(), 0) for out in flags])
    given, every = mlp_outputs(model, "llama", 1), streams(model)
    parts = [(weight, a, a + h[4] - h[2]) for a, (weight, h) in zip(given, every, strict=True)]

    def distance(rows: Any, operator: torch.Tensor) -> torch.Tensor:
        a, target = (torch.tensor(np.concatenate([row[place] for row in rows])) for place in (1, 2))
        mapped = a @ (torch.eye(32, dtype=torch.float64) + operator)
        return 1 - (mapped * target).sum(1) / mapped.norm(dim=1) / target.norm(dim=1)

    for name, kept in (("validated", ~flags), ("tensors", np.ones_like(flags))):
        operator = torch.zeros(32, 32, dtype=torch.float64, requires_grad=True)
        first, second = torch.zeros(32, 32), torch.zeros(32, 32)
        # Each of the two sources is one batch, whose tokens all count as the source weighs: they are summed.
        batches = [
            [p for p, keep in zip(parts, kept, strict=True) if keep and p[0] == weight]
            for weight in WEIGHTS
        ]
        for number in range(2 * 15):
            weight, rows = WEIGHTS[number % 2], batches[number % 2]
            (gradient,) = torch.autograd.grad(weight * distance(rows, operator).sum(), operator)
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            update = (
                first
                / (1 - 0.9 ** (number + 1))
                / ((second / (1 - 0.999 ** (number + 1))).sqrt() + 1e-8)
            )
            operator = (operator - 0.003 * update).detach().requires_grad_()
        ours = getattr(fit, name)["operator"].double()
        assert relative(ours + torch.eye(32), operator.detach() + torch.eye(32)) < 1e-4
        assert distance(parts, ours).mean() < 0.9 * distance(parts, torch.zeros(32, 32)).mean()
    assert (
        "ridge" not in fit.facts and fit.facts["heldout_error"] > 0 and fit.facts["parameters"] == 0
    )


@pytest.mark.parametrize("family", sorted(DOWN))
def test_replaceme_folds_into_a_stock_checkpoint_that_generates(
    family: str, tmp_path: Path
) -> None:
    model, runs = tiny.model(family), [(1, 2), (3, 5)]
    before, variant = logits(model), repaired(model, ["1", "3", "4"], ReplaceMe(), runs)
    assert torch.equal(logits(model), before)
    operators = {
        start: fit.tensors["operator"] for (start, _), fit in fits(model, ReplaceMe(), runs).items()
    }
    modules = {
        start: layers_of(model)[start - 1].get_submodule(DOWN[family]) for start in operators
    }
    changes = {
        modules[1]: lambda a: a + a @ operators[1],
        modules[3]: lambda a: a + a @ operators[3],
    }
    expected = hooked(model, {1: same, 3: same, 4: same}, changes)
    torch.testing.assert_close(logits(variant), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(
        logits(materialise(model, {"units": ["1", "3", "4"]})), expected, atol=1e-2
    )
    stock(variant, tmp_path / "export")


def stock(variant: PreTrainedModel, folder: Path) -> None:
    """The variant is a stock checkpoint, which comes back with the same logits and generates with the cache."""
    assert save.save_variant(variant, folder) == "stock"
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits(again), logits(variant), atol=1e-6, rtol=1e-6)
    ids, ways = (
        tiny.tokens(1, 6),
        {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 3, "eos_token_id": None},
    )
    cached, uncached = (again.generate(ids, use_cache=cache, **ways) for cache in (True, False))
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("family", [*NORMED, "mixtral"])
def test_replaceme_is_refused_where_the_mlp_output_does_not_reach_the_stream_as_it_is(
    family: str,
) -> None:
    with pytest.raises(LaminaError, match=f"'{family}' has .*ghost or linearpatch"):
        fits(tiny.model(family), ReplaceMe(), [(2, 4)])


def test_replaceme_is_refused_where_a_norm_stands_on_the_stream_and_where_no_mlp_is_before_the_run() -> (
    None
):
    post = tiny.model("opt", do_layer_norm_before=False)
    with pytest.raises(LaminaError, match="'opt' has a norm"):
        fits(post, ReplaceMe(), [(2, 4)])
    with pytest.raises(LaminaError, match=r"before layer 0 there is none.*protect: \[0\]"):
        fits(tiny.model(), ReplaceMe(), [(0, 2)])
    quantised = tiny.model("bitnet")
    quantised.config.quantization_config = {"quant_method": "bitnet"}
    with pytest.raises(LaminaError, match="'bitnet' is quantised"):
        fits(quantised, ReplaceMe(), [(2, 4)])

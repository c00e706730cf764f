"""A bypass of removed halves is the least-squares map between streams that hooks record, wherever it is applied."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM, PreTrainedModel

import lamina
from lamina import paths
from lamina.data import calibrations
from lamina.engine import taps
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, weights_and_patches
from lamina.models.export import save
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs, units_of
from lamina.repair import fitting, patch
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.repair.methods.linearpatch import LinearPatch
from lamina.repair.methods.replaceme import ReplaceMe
from tests.engine.test_candidates import measured
from tests.engine.test_sweep import NEAR_TIE, naive, random_samples
from tests.families.test_families import base_folder, plan_of, source_of
from tests.given import tiny
from tests.repair.test_ghost import LENGTHS, sequences
from tests.repair.test_repairs import PRUNED
from tests.repair.test_repairs import fitted as by_script
from tests.repair.test_repairs import results as results  # a fixture
from tests.stages.test_refused_repairs import plan

# The norms that read the stream between attention and MLP, and the modules whose outputs are added to the stream.
NORMS = {"llama": "post_attention_layernorm", "gpt2": "ln_2", "gemma2": "pre_feedforward_layernorm"}
NORMS |= {"bloom": "post_attention_layernorm", "mixtral": "post_attention_layernorm"}
UNITS = ["1.attention", "2.mlp", "3.attention", "4.mlp"]
RUNS: list[Boundary] = [(1, 1.5), (2.5, 3.5), (4.5, 5)]
# Repairs, and how many numbers each has for a channel.
FORMS = {"affine": (Ghost(bias=True), 33), "factors": (Ghost(rank=8, bias=True), 17)}
FORMS |= {"rank": (Ghost(rank=16), 32), "scales": (LinearPatch(), 32)}


@torch.no_grad()
def recorded(model: PreTrainedModel, family: str, ids: list[int]) -> dict[float, torch.Tensor]:
    """h_0, h_0.5, h_1 … (T, C) of one text, the halves from what the norm before each MLP is given."""
    found: dict[float, torch.Tensor] = {}
    with ExitStack() as hooks:
        for number, layer in enumerate(layers_of(model)):
            norm = layer.get_submodule(NORMS[family])
            keep = lambda module, args, at=number + 0.5: found.update({at: args[0][0]})  # noqa: E731
            hooks.callback(norm.register_forward_pre_hook(keep).remove)
        whole = tiny.stream(model, torch.tensor([ids]), layers_of(model))
    return found | {place: stream[0] for place, stream in enumerate(whole)}


def stacked(
    family: str, model: PreTrainedModel, start: float, end: float
) -> tuple[np.ndarray, np.ndarray]:
    texts = [recorded(model, family, ids) for ids in sequences()]
    x, y = (torch.cat([text[place] for text in texts]).double().numpy() for place in (start, end))
    return x, y


def fitted(
    model: PreTrainedModel, options: Any, units: list[str]
) -> tuple[fitting.FitRequest, list[fitting.FittedGroup]]:
    plan = {
        "model": "m",
        "calibration": "c",
        "selector": "s",
        "removed": len(units),
        "units": units,
    }
    request = fitting.sort_plans([plan], len(layers_of(model)), options)
    given = calibrations.build_calibration(tiny.samples(sequences()), tiny.VOCABULARY)
    return request, fitting.fit_plans(
        model, request, {"c": given}, [("c", 1.0)], 0
    ) if request.plans else []


@pytest.mark.parametrize("family", NORMS)
def test_the_stream_within_a_layer_is_what_the_norm_before_the_mlp_reads(family: str) -> None:
    model, texts = tiny.model(family), sequences()[:4]
    wanted = [recorded(model, family, ids) for ids in texts]

    def compare(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        for line, number in enumerate(batch.samples):
            for place, stream in streams.items():
                got = stream[line, : len(texts[number])]
                torch.testing.assert_close(got, wanted[number][place], atol=1e-4, rtol=1e-4)

    taps.run_sequences(model, texts, [0, 0.5, 2, 2.5, 4.5, 5], compare, 60)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_a_bypass_is_the_least_squares_map_of_recorded_streams(ridge: float) -> None:
    model, options = tiny.model(), Ghost(ridge=ridge, bias=ridge > 0)
    for (start, end), statistics in ghost.collect(model, [Source(sequences())], RUNS, options, 0):
        x, y = stacked("llama", model, start, end)
        shift = [part.mean(0) * options.bias for part in (x, y - x)]
        penalty = np.sqrt(ridge * np.trace((x - shift[0]).T @ (x - shift[0])) / 32) * np.eye(32)
        target = np.vstack([y - x - shift[1], np.zeros((32, 32))])
        wanted, *_ = np.linalg.lstsq(np.vstack([x - shift[0], penalty]), target, rcond=None)
        fit = ghost.fit(statistics, options)
        made = ghost.as_patch(fit.tensors)
        change = x @ made.operator.double().numpy() + (
            made.bias.double().numpy() if made.bias is not None else 0
        )
        expected = (x - shift[0]) @ wanted + shift[1]
        assert np.linalg.norm(change - expected) / np.linalg.norm(expected) < 1e-4
        assert fit.facts["parameters"] == 32 * 32 + 32 * options.bias
        assert fit.facts["fit_error_before"] == pytest.approx(
            np.linalg.norm(y - x) / np.linalg.norm(y), rel=0.3
        )
        assert fit.facts["n_tokens"] == sum(LENGTHS)


@contextmanager
def patched_by_hand(model: PreTrainedModel, patches: Mapping[Boundary, Any]) -> Iterator[None]:
    """While open, the last half of each run gives x M + b, for what reaches it, and the others give zero."""
    reached: dict[int, torch.Tensor] = {}
    with ExitStack() as hooks:
        for run, made in patches.items():
            units = units_of(*run)
            for unit in units:
                number, part = int(unit.split(".")[0]), unit.split(".")[1]
                layer = layers_of(model)[number]
                before = layer if part == "attention" else layer.post_attention_layernorm

                def arrive(module: Any, args: Any, kwargs: Any, number: int = number) -> None:
                    reached[number] = args[0] if args else kwargs["hidden_states"]

                def give(
                    module: Any,
                    args: Any,
                    output: Any,
                    number: int = number,
                    last: bool = unit == units[-1],
                    made: Any = made,
                ) -> Any:
                    x = reached[number]
                    added = (
                        x @ made.matrix + (0 if made.bias is None else made.bias)
                        if last
                        else torch.zeros_like(x)
                    )
                    return (added, *output[1:]) if isinstance(output, tuple) else added

                hooks.callback(before.register_forward_pre_hook(arrive, with_kwargs=True).remove)
                half = layer.self_attn if part == "attention" else layer.mlp
                hooks.callback(half.register_forward_hook(give).remove)
        yield


@pytest.mark.parametrize(("options", "added"), FORMS.values(), ids=FORMS)
@torch.no_grad()
def test_variant_engine_file_and_export_are_the_model_patched_by_hand(
    options: Any, added: int, tmp_path: Path
) -> None:
    model, ids, samples = tiny.model(), tiny.tokens(), random_samples(2, count=4)
    request, groups = fitted(model, options, UNITS)
    assert list(request.boundaries.values()) == [RUNS] == [find_runs(UNITS, 5)]
    tensors, rows = fitting.record_fits(request, groups, "bypass")
    told = [(row["boundary"], row["start"], row["end"]) for row in rows]
    assert told == [("1-1.5", 1, 1.5), ("2.5-3.5", 2.5, 3.5), ("4.5-5", 4.5, 5)]
    patch.write_patch(tmp_path / "bypass.safetensors", options.method, tensors)
    patches = patch.read_patch(tmp_path / "bypass.safetensors", len(UNITS))
    made = {run: fit.as_patch() for run, fit in patches.items()}
    assert list(made) == RUNS

    variant = materialise(model, plan_of(UNITS), patches)
    with patched_by_hand(model, made):
        wanted = model(input_ids=ids, use_cache=False).logits
    bare = materialise(model, plan_of(UNITS))
    torch.testing.assert_close(
        variant(input_ids=ids, use_cache=False).logits, wanted, atol=1e-4, rtol=1e-4
    )
    assert not torch.allclose(bare(input_ids=ids, use_cache=False).logits, wanted, atol=1e-2)
    (scores,) = measured(model, samples, [Candidate(frozenset(UNITS), made)])
    assert np.abs(scores - naive(variant, samples, [])).max() < NEAR_TIE
    first = variant(input_ids=ids[:, :5], use_cache=True)
    later = variant(
        input_ids=ids[:, 5:], past_key_values=first.past_key_values, use_cache=True
    ).logits
    torch.testing.assert_close(later, wanted[:, 5:], atol=1e-4, rtol=1e-4)

    source = source_of(base_folder(tmp_path / "base"), UNITS)
    with pytest.raises(LaminaError, match="a stock checkpoint has no place for a patch"):
        save.export_variant(model, source, tmp_path / "stock", patches, form="stock")
    assert save.export_variant(model, source, tmp_path / "export", patches) == "code"
    again = load_folder(tmp_path / "export", "float32", True)
    torch.testing.assert_close(
        again(input_ids=ids, use_cache=False).logits, wanted, atol=1e-4, rtol=1e-4
    )
    assert [row["parameters"] for row in rows] == [32 * added] * 3
    counts = [
        sum(tensor.numel() for tensor in weights_and_patches(each))
        for each in (variant, again, bare)
    ]
    assert (
        counts[0] - counts[2]
        == counts[1] - counts[2]
        == 3 * 32 * added
        == sum(map(torch.numel, tensors.values()))
    )


@torch.no_grad()
def test_the_workflow_fits_bypasses_of_every_size_and_loads_them(results: Path) -> None:
    for size, units in ((1, ["2.mlp"]), (2, ["1.attention", "4.mlp"])):
        plan(results, size, units)
    rows = by_script(results, "mine", method="ghost")
    told = sorted((row["removed"], row["boundary"], row["start"], row["end"]) for row in rows)
    assert told == [(1, "2.5-3", 2.5, 3), (2, "1-1.5", 1, 1.5), (2, "4.5-5", 4.5, 5)]
    assert all(row["refused"] is None and row["mae_after"] > 0 for row in rows)
    model, _ = lamina.load("tiny/words/cosine/removed=2/mine/none", results, device="cpu")
    patches = patch.read_patch(paths.patch(PRUNED.key, "mine", results), 2)
    wanted = materialise(tiny.model(), plan_of(["1.attention", "4.mlp"]), patches)
    torch.testing.assert_close(
        model(tiny.tokens()).logits, wanted(tiny.tokens()).logits, atol=1e-5, rtol=1e-5
    )


def test_runs_are_those_of_halves_in_order() -> None:
    assert find_runs(["3", "4.mlp", "5.attention", "5.mlp", "8.attention"], 9) == [
        (3, 4),
        (4.5, 6),
        (8, 8.5),
    ]
    assert all(
        find_runs(units_of(*run), 9) == [run]
        for run in [(0, 0.5), (0.5, 1), (3, 5), (2.5, 4.5), (8, 9)]
    )


def test_models_and_repairs_without_such_streams_refuse() -> None:
    config = GPTJConfig(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=5, n_head=4, rotary_dim=8, n_positions=64
    )
    for model in (tiny.model("falcon"), tiny.model("gpt_neox"), GPTJForCausalLM(config).eval()):
        with pytest.raises(
            LaminaError, match="no stream lies between attention and MLP in layer 2"
        ):
            fitted(model, Ghost(), ["2.mlp"])
        assert fitted(model, Ghost(), ["2.attention", "2.mlp"])[1]
    normed = tiny.model("opt", do_layer_norm_before=False)
    with pytest.raises(LaminaError, match="the model family 'opt' has a norm on the stream itself"):
        fitted(normed, Ghost(), ["2.attention", "2.mlp"])
    request, _ = fitted(tiny.model(), ReplaceMe(), ["2.mlp"])
    assert not request.plans and "begins or ends within a layer" in request.reasons[1]

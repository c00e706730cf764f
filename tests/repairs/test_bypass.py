"""A bypass of removed sub-layers is the least-squares map between streams that hooks record.

Engine, variant, file and export apply it as hooks on the complete model do.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPTJConfig, GPTJForCausalLM, PreTrainedModel

import lamina
from lamina import paths
from lamina.data.calibrations import build_calibration
from lamina.engine import sweep, taps
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, weights_and_patches
from lamina.models.export import save
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs, units_of
from lamina.repairs import fitting, patch
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina.repairs.methods.linearpatch import LinearPatch
from lamina.repairs.methods.replaceme import ReplaceMe
from lamina.repairs.protocol import Fitted
from tests.families.test_families import base_folder, plan_of, source_of
from tests.given import tiny
from tests.given.cut_models import NEAR_TIE, naive_loglikelihoods, random_samples
from tests.given.repairs import (
    PRUNED,
    TEXT_LENGTHS,
    draw_texts,
    fit_repair,
    logits_of,
    write_plan,
)
from tests.repairs.examples import relative_distance, ridge_regression

# The norm between attention and MLP, which reads the stream there.
MIDDLE_NORMS = {
    "llama": "post_attention_layernorm",
    "gpt2": "ln_2",
    "gemma2": "pre_feedforward_layernorm",
    "bloom": "post_attention_layernorm",
    "mixtral": "post_attention_layernorm",
}
REMOVED_UNITS = ["1.attention", "2.mlp", "3.attention", "4.mlp"]
RUNS: list[Boundary] = [(1, 1.5), (2.5, 3.5), (4.5, 5)]


@torch.no_grad()
def record_streams(
    model: PreTrainedModel, family: str, token_ids: list[int]
) -> dict[float, torch.Tensor]:
    """h_0, h_0.5, h_1 … (tokens, C) of one text; within a layer, what its middle norm is given."""
    streams: dict[float, torch.Tensor] = {}

    def record_at(boundary: float) -> Any:
        def record(module: nn.Module, inputs: Any) -> None:
            streams[boundary] = inputs[0][0]

        return record

    with ExitStack() as hooks:
        for layer_index, layer in enumerate(layers_of(model)):
            norm = layer.get_submodule(MIDDLE_NORMS[family])
            hook = norm.register_forward_pre_hook(record_at(layer_index + 0.5))
            hooks.callback(hook.remove)
        layer_streams = tiny.stream(model, torch.tensor([token_ids]), layers_of(model))
    for boundary, stream in enumerate(layer_streams):
        streams[boundary] = stream[0]
    return streams


@pytest.mark.parametrize("family", MIDDLE_NORMS)
def test_the_stream_within_a_layer_is_what_the_norm_before_the_mlp_reads(family: str) -> None:
    model = tiny.model(family)
    texts = draw_texts()[:4]
    expected = [record_streams(model, family, token_ids) for token_ids in texts]
    n_compared = 0

    def compare(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        nonlocal n_compared
        for line, text_index in enumerate(batch.samples):
            n_tokens = len(texts[text_index])
            for boundary, stream in streams.items():
                measured = stream[line, :n_tokens]
                expected_stream = expected[text_index][boundary]
                torch.testing.assert_close(measured, expected_stream, atol=1e-4, rtol=1e-4)
                n_compared += 1

    taps.run_sequences(model, texts, [0, 0.5, 2, 2.5, 4.5, 5], compare, 60)

    assert n_compared == 4 * 6


@pytest.mark.parametrize("options", [Ghost(ridge=0.0), Ghost(ridge=1e-3, bias=True)])
def test_a_bypass_is_the_least_squares_map_of_recorded_streams(options: Ghost) -> None:
    model = tiny.model()
    sources = [Source(draw_texts())]
    recorded = [record_streams(model, "llama", token_ids) for token_ids in draw_texts()]

    def tokens_at(boundary: float) -> np.ndarray:
        return torch.cat([streams[boundary] for streams in recorded]).double().numpy()

    for (start, end), statistics in ghost.collect(model, sources, RUNS, options, 0):
        fit = ghost.fit(statistics, options)

        x = tokens_at(start)
        d = tokens_at(end) - x
        x_mean = x.mean(axis=0) * options.bias
        d_mean = d.mean(axis=0) * options.bias
        operator = ridge_regression(x - x_mean, d - d_mean, options.ridge)
        expected_change = (x - x_mean) @ operator + d_mean
        change = x @ fit.tensors["operator"].double().numpy()
        if options.bias:
            change = change + fit.tensors["bias"].double().numpy()
        assert relative_distance(change, expected_change) < 1e-4
        assert fit.facts["parameters"] == 32 * 32 + 32 * options.bias
        assert fit.facts["n_tokens"] == sum(TEXT_LENGTHS)


class RunReplacement:
    """Hooks that replace the output of a run's sub-layers on the complete model.

    The last sub-layer returns x M + b for the stream x that reaches it, the others zero.
    """

    def __init__(self, model: PreTrainedModel, run: Boundary, fit: Fitted) -> None:
        self.patch = fit.as_patch()
        self.units = units_of(*run)
        self.stream = torch.empty(0)
        self.handles: list[Any] = []
        for unit in self.units:
            layer_index, component = unit.split(".")
            layer = layers_of(model)[int(layer_index)]
            if component == "attention":
                reader: nn.Module = layer
                sublayer = layer.self_attn
            else:
                reader = layer.post_attention_layernorm
                sublayer = layer.mlp
            is_last = unit == self.units[-1]
            replace = self.return_patch if is_last else self.return_zero
            self.handles.append(reader.register_forward_pre_hook(self.record, with_kwargs=True))
            self.handles.append(sublayer.register_forward_hook(replace))

    def record(self, module: nn.Module, arguments: Any, keywords: Any) -> None:
        self.stream = arguments[0] if arguments else keywords["hidden_states"]

    def return_patch(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        added = self.stream @ self.patch.matrix
        if self.patch.bias is not None:
            added = added + self.patch.bias
        return replace_first(output, added)

    def return_zero(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return replace_first(output, torch.zeros_like(self.stream))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def replace_first(output: Any, value: torch.Tensor) -> Any:
    """A module's output with another value in place of its first or only tensor."""
    if isinstance(output, tuple):
        return (value, *output[1:])
    return value


@contextmanager
def replaced_runs(model: PreTrainedModel, patches: Mapping[Boundary, Fitted]) -> Iterator[None]:
    """While open, the model computes what its variant with these patches does."""
    replacements = [RunReplacement(model, run, fit) for run, fit in patches.items()]
    yield
    for replacement in replacements:
        replacement.remove()


def fit_plan(
    model: PreTrainedModel, options: Any, units: list[str]
) -> tuple[fitting.FitRequest, list[fitting.FittedGroup]]:
    """Fit the patches of one plan on random texts."""
    plan = plan_of(units)
    request = fitting.sort_plans([plan], len(layers_of(model)), options)
    calibration = build_calibration(tiny.samples(draw_texts()), tiny.VOCABULARY)
    groups: list[fitting.FittedGroup] = []
    if request.plans:
        groups = fitting.fit_plans(model, request, {"c": calibration}, [("c", 1.0)], 0)
    return request, groups


@pytest.fixture(
    params=[
        (Ghost(bias=True), 33),
        (Ghost(rank=8, bias=True), 17),
        (Ghost(rank=16), 32),
        (LinearPatch(), 32),
    ],
    ids=["affine", "factors", "rank", "scales"],
)
def repair(request: pytest.FixtureRequest) -> tuple[Any, int]:
    """Options of a repair, and how many numbers its patches have for a channel."""
    options_and_numbers: tuple[Any, int] = request.param
    return options_and_numbers


@pytest.fixture
def patch_rows_and_file(
    repair: tuple[Any, int], tmp_path: Path
) -> tuple[list[dict[str, Any]], Path]:
    """The rows of table `patches`, and the file of the patches."""
    options, _ = repair
    request, groups = fit_plan(tiny.model(), options, REMOVED_UNITS)
    tensors, rows = fitting.record_fits(request, groups, "bypass")
    file = tmp_path / "bypass.safetensors"
    patch.write_patch(file, options.method, tensors)
    return rows, file


@pytest.fixture
def patches(patch_rows_and_file: tuple[list[dict[str, Any]], Path]) -> dict[Boundary, Fitted]:
    """The patches, as they are read from their file."""
    _, file = patch_rows_and_file
    return patch.read_patch(file, len(REMOVED_UNITS))


def test_a_bypass_has_a_row_for_each_run_of_sublayers(
    patch_rows_and_file: tuple[list[dict[str, Any]], Path], repair: tuple[Any, int]
) -> None:
    rows, _ = patch_rows_and_file
    _, numbers_per_channel = repair

    runs = [(row["boundary"], row["start"], row["end"]) for row in rows]

    assert runs == [("1-1.5", 1, 1.5), ("2.5-3.5", 2.5, 3.5), ("4.5-5", 4.5, 5)]
    assert [row["parameters"] for row in rows] == [32 * numbers_per_channel] * 3


@torch.no_grad()
def test_variant_and_engine_compute_what_hooks_on_the_complete_model_do(
    patches: dict[Boundary, Fitted],
) -> None:
    model = tiny.model()
    samples = random_samples(2, count=4)
    assert list(patches) == RUNS

    variant = materialise(model, plan_of(REMOVED_UNITS), patches)
    candidate_patches = {run: fit.as_patch() for run, fit in patches.items()}
    candidate = Candidate(frozenset(REMOVED_UNITS), candidate_patches)
    with sweep.open_session(model, samples, outputs=False) as session:
        session.measure(range(len(samples)), {"candidate": candidate})

    with replaced_runs(model, patches):
        expected_logits = logits_of(model)
        expected_loglikelihoods = naive_loglikelihoods(model, samples)
    torch.testing.assert_close(logits_of(variant), expected_logits, atol=1e-4, rtol=1e-4)
    (loglikelihoods,) = session.scores.loglikelihood
    assert np.abs(loglikelihoods - expected_loglikelihoods).max() < NEAR_TIE
    bare = materialise(model, plan_of(REMOVED_UNITS))
    assert not torch.allclose(logits_of(bare), expected_logits, atol=1e-2)


@torch.no_grad()
def test_a_variant_with_bypasses_goes_on_from_a_cache(patches: dict[Boundary, Fitted]) -> None:
    model = tiny.model()
    token_ids = tiny.tokens()
    variant = materialise(model, plan_of(REMOVED_UNITS), patches)

    cache = variant(input_ids=token_ids[:, :5], use_cache=True).past_key_values
    output = variant(input_ids=token_ids[:, 5:], past_key_values=cache, use_cache=True)

    with replaced_runs(model, patches):
        expected = logits_of(model)
    torch.testing.assert_close(output.logits, expected[:, 5:], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_bypasses_are_exported_with_code_and_their_parameters_count(
    patches: dict[Boundary, Fitted], repair: tuple[Any, int], tmp_path: Path
) -> None:
    model = tiny.model()
    source = source_of(base_folder(tmp_path / "base"), REMOVED_UNITS)

    form = save.export_variant(model, source, tmp_path / "export", patches)

    reloaded = load_folder(tmp_path / "export", "float32", True)
    with replaced_runs(model, patches):
        expected = logits_of(model)
    torch.testing.assert_close(logits_of(reloaded), expected, atol=1e-4, rtol=1e-4)
    assert form == "code"
    _, numbers_per_channel = repair
    bare = materialise(model, plan_of(REMOVED_UNITS))
    variant = materialise(model, plan_of(REMOVED_UNITS), patches)
    for repaired in (variant, reloaded):
        n_added = count_numbers(repaired) - count_numbers(bare)
        assert n_added == 3 * 32 * numbers_per_channel


def count_numbers(model: PreTrainedModel) -> int:
    """The numbers in weights and patches."""
    return sum(tensor.numel() for tensor in weights_and_patches(model))


def test_a_stock_checkpoint_refuses_a_bypass(
    patches: dict[Boundary, Fitted], tmp_path: Path
) -> None:
    source = source_of(base_folder(tmp_path / "base"), REMOVED_UNITS)

    with pytest.raises(LaminaError, match="a stock checkpoint cannot hold a patch"):
        save.export_variant(tiny.model(), source, tmp_path / "stock", patches, form="stock")


@torch.no_grad()
def test_the_workflow_fits_bypasses_of_every_size_and_loads_them(results: Path) -> None:
    write_plan(results, 1, ["2.mlp"])
    write_plan(results, 2, ["1.attention", "4.mlp"])

    rows = fit_repair(results, "mine", method="ghost")

    runs = sorted((row["removed"], row["boundary"], row["start"], row["end"]) for row in rows)
    assert runs == [(1, "2.5-3", 2.5, 3), (2, "1-1.5", 1, 1.5), (2, "4.5-5", 4.5, 5)]
    for row in rows:
        assert row["refused"] is None
        assert row["mae_after"] > 0
    loaded, _ = lamina.load("tiny/words/cosine/removed=2/mine/none", results, device="cpu")
    patches = patch.read_patch(paths.patch(PRUNED.key, "mine", results), 2)
    expected = materialise(tiny.model(), plan_of(["1.attention", "4.mlp"]), patches)
    torch.testing.assert_close(logits_of(loaded), logits_of(expected), atol=1e-5, rtol=1e-5)


def test_runs_join_sublayers_that_follow_each_other() -> None:
    units = ["3", "4.mlp", "5.attention", "5.mlp", "8.attention"]

    assert find_runs(units, 9) == [(3, 4), (4.5, 6), (8, 8.5)]


@pytest.mark.parametrize("run", [(0, 0.5), (0.5, 1), (3, 5), (2.5, 4.5), (8, 9)])
def test_the_units_of_a_run_make_up_this_run(run: Boundary) -> None:
    assert find_runs(units_of(*run), 9) == [run]


def parallel_models() -> dict[str, PreTrainedModel]:
    """Models whose attention and MLP both read the layer's input."""
    gptj_config = GPTJConfig(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=5, n_head=4, rotary_dim=8, n_positions=64
    )
    return {
        "falcon": tiny.model("falcon"),
        "gpt_neox": tiny.model("gpt_neox"),
        "gptj": GPTJForCausalLM(gptj_config).eval(),
    }


@pytest.mark.parametrize("family", ["falcon", "gpt_neox", "gptj"])
def test_a_model_without_a_stream_within_layers_has_bypasses_of_whole_layers_only(
    family: str,
) -> None:
    model = parallel_models()[family]

    with pytest.raises(
        LaminaError, match="layer 2 .* has no residual stream between attention and MLP"
    ):
        fit_plan(model, Ghost(), ["2.mlp"])
    _, groups = fit_plan(model, Ghost(), ["2.attention", "2.mlp"])
    assert groups


def test_a_model_with_norms_on_the_stream_itself_is_refused() -> None:
    model = tiny.model("opt", do_layer_norm_before=False)
    message = "the model family 'opt' normalises the stream itself"

    with pytest.raises(LaminaError, match=message):
        fit_plan(model, Ghost(), ["2.attention", "2.mlp"])


def test_a_repair_of_whole_layers_refuses_plans_of_sublayers() -> None:
    request, _ = fit_plan(tiny.model(), ReplaceMe(), ["2.mlp"])

    assert not request.plans
    assert "begins or ends within a layer" in request.reasons[1]

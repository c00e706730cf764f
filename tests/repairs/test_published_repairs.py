"""Each published repair equals its paper's formula on dense streams, and acts as it says.

It is refused where a family has no place for it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.export import save
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repairs import protocol
from lamina.repairs.methods import linearpatch
from lamina.repairs.methods.linearpatch import LinearPatch
from lamina.repairs.methods.replaceme import ReplaceMe
from tests.given import tiny
from tests.given.repairs import TEXT_LENGTHS, logits_of
from tests.given.slow import slow_except
from tests.repairs.examples import (
    SOURCE_WEIGHTS,
    Text,
    fit_method,
    relative_distance,
    repaired_variant,
    streams_of,
    texts_of,
    token_weights,
    weighted_norm,
    weighted_sources,
)

Change = Callable[[torch.Tensor], torch.Tensor]
REMOVED_UNITS = ["1", "3", "4"]
RUNS: list[Boundary] = [(1, 2), (3, 5)]


@torch.no_grad()
def logits_with_hooks(
    model: PreTrainedModel,
    layer_changes: Mapping[int, Change],
    module_changes: Mapping[nn.Module, Change],
) -> torch.Tensor:
    """Logits of the complete model.

    layer_changes: Layers that return `change(what enters them)`.
    module_changes: Modules that return `change(their output)`.
    """

    def replace_layer(change: Change) -> Any:
        def hook(layer: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
            stream = change(arguments[0] if arguments else keywords["hidden_states"])
            return (stream, *output[1:]) if isinstance(output, tuple) else stream

        return hook

    def change_output(change: Change) -> Any:
        return lambda module, inputs, output: change(output)

    handles: list[Any] = []
    for layer_index, change in layer_changes.items():
        layer = layers_of(model)[layer_index]
        handles.append(layer.register_forward_hook(replace_layer(change), with_kwargs=True))
    for module, change in module_changes.items():
        handles.append(module.register_forward_hook(change_output(change)))
    logits = logits_of(model)
    for handle in handles:
        handle.remove()
    return logits


def skip(stream: torch.Tensor) -> torch.Tensor:
    return stream


def mean_ratio_operator(
    model: PreTrainedModel, texts: list[Text], rotation: np.ndarray
) -> np.ndarray:
    """LinearPatch of run (1, 4): Q diag(s) Qᵀ.

    s is the weighted mean over samples of mean abs(h_4 Q) / mean abs(h_1 Q), the means over tokens.
    """
    ratios: list[np.ndarray] = []
    for streams in streams_of(model, texts):
        magnitudes = np.abs(streams @ rotation).mean(axis=1)
        ratios.append(magnitudes[4] / magnitudes[1])
    weights = [text.weight for text in texts]
    scales = np.average(ratios, axis=0, weights=weights)
    return rotation @ np.diag(scales) @ rotation.T


@pytest.mark.parametrize("form", ["diag", "rotated"])
@pytest.mark.parametrize(("n_channels", "block_size"), [(32, 32), (24, 8)])
def test_linearpatch_is_the_mean_ratio_of_the_samples_after_the_rotation(
    form: str, n_channels: int, block_size: int
) -> None:
    """The rotation has the largest Hadamard blocks that divide the channels."""
    model = tiny.model(hidden_size=n_channels, num_attention_heads=4, head_dim=8)
    rotation = np.eye(n_channels)
    if form == "rotated":
        block = scipy.linalg.hadamard(block_size) / np.sqrt(block_size)
        rotation = np.kron(np.eye(n_channels // block_size), block)

    fit = fit_method(model, LinearPatch(form=form), [(1, 4), (2, 3)])[1, 4]

    identity = np.eye(n_channels)
    patch = linearpatch.as_patch(fit.tensors)
    expected = mean_ratio_operator(model, texts_of(weighted_sources()), rotation)
    assert relative_distance(patch.operator.double().numpy() + identity, expected) < 1e-5
    fitted_texts = texts_of(weighted_sources(), is_heldout=False)
    validated = fit.validated["operator"].double().numpy() + identity
    expected = mean_ratio_operator(model, fitted_texts, rotation)
    assert relative_distance(validated, expected) < 1e-5
    assert fit.facts["n_samples"] == 60
    assert fit.facts["n_tokens"] == 3 * sum(TEXT_LENGTHS)


def test_errors_of_linearpatch_are_those_of_weighted_tokens_of_each_split() -> None:
    model = tiny.model()

    fit = fit_method(model, LinearPatch(form="diag"), [(1, 4)])[1, 4]

    operator = fit.validated["operator"].double().numpy() + np.eye(32)
    for is_heldout, column in ((False, "fit_error"), (True, "heldout_error")):
        texts = texts_of(weighted_sources(), is_heldout)
        streams = np.concatenate(streams_of(model, texts), axis=1)
        weights = token_weights(texts)
        norm = weighted_norm(streams[4], weights)
        error_before = weighted_norm(streams[4] - streams[1], weights) / norm
        error_after = weighted_norm(streams[4] - streams[1] @ operator, weights) / norm
        assert fit.facts[f"{column}_before"] == pytest.approx(error_before, rel=1e-4)
        assert fit.facts[column] == pytest.approx(error_after, rel=1e-4)


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_linearpatch_acts_at_the_boundary_and_is_exported(family: str, tmp_path: Path) -> None:
    model = tiny.model(family)
    fits = fit_method(model, LinearPatch(), RUNS)

    variant = repaired_variant(model, REMOVED_UNITS, "linearpatch", fits)

    first_matrix = fits[1, 2].tensors["operator"] + torch.eye(32)
    second_matrix = fits[3, 5].tensors["operator"] + torch.eye(32)
    layer_changes: dict[int, Change] = {
        1: lambda stream: stream @ first_matrix,
        3: skip,
        4: lambda stream: stream @ second_matrix,
    }
    expected = logits_with_hooks(model, layer_changes, {})
    torch.testing.assert_close(logits_of(variant), expected, atol=1e-4, rtol=1e-4)
    assert save.save_variant(variant, tmp_path / "export") == "code"
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export", trust_remote_code=True)
    torch.testing.assert_close(logits_of(reloaded), logits_of(variant), atol=1e-6, rtol=1e-6)


OUTPUT_PROJECTIONS = {
    "gpt2": "mlp.c_proj",
    "opt": "fc2",
    "bloom": "mlp.dense_4h_to_h",
    "falcon": "mlp.dense_4h_to_h",
    "gpt_neox": "mlp.dense_4h_to_h",
    "bitnet": "mlp.down_proj",
    "llama": "mlp.down_proj",
    "mistral": "mlp.down_proj",
    "phi3": "mlp.down_proj",
    "qwen2": "mlp.down_proj",
    "qwen3": "mlp.down_proj",
}
"""The module whose output an MLP adds to the stream."""


def output_projection(model: PreTrainedModel, family: str, layer_index: int) -> nn.Module:
    return layers_of(model)[layer_index].get_submodule(OUTPUT_PROJECTIONS[family])


@torch.no_grad()
def mlp_outputs(
    model: PreTrainedModel, family: str, layer_index: int, texts: list[Text]
) -> list[np.ndarray]:
    """What an MLP adds to the stream, (tokens, C), for each text by one forward pass."""
    outputs: list[np.ndarray] = []

    def record(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        outputs.append(output.detach().reshape(-1, 32).double().numpy().copy())

    handle = output_projection(model, family, layer_index).register_forward_hook(record)
    for text in texts:
        model(input_ids=torch.tensor([text.token_ids]), use_cache=False)
    handle.remove()
    return outputs


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, sorted(OUTPUT_PROJECTIONS)))
def test_replaceme_is_the_least_squares_map_of_the_mlp_before_the_run(family: str) -> None:
    """The ridge weighs T - I: as further rows, which the map should leave as they are."""
    model = tiny.model(family)

    fit = fit_method(model, ReplaceMe(ridge=1e-3), [(2, 4)])[2, 4]

    texts = texts_of(weighted_sources())
    streams = np.concatenate(streams_of(model, texts), axis=1)
    mlp_output = np.concatenate(mlp_outputs(model, family, 1, texts))
    roots = np.sqrt(token_weights(texts))
    inputs = roots * mlp_output
    targets = roots * (mlp_output + streams[4] - streams[2])
    penalty = np.sqrt(1e-3 * np.square(inputs).sum() / 32) * np.eye(32)
    expected, *_ = np.linalg.lstsq(
        np.vstack([inputs, penalty]), np.vstack([targets, penalty]), rcond=None
    )
    operator = fit.tensors["operator"].double().numpy() + np.eye(32)
    assert relative_distance(mlp_output @ operator, mlp_output @ expected) < 1e-5
    assert fit.facts["parameters"] == 0
    assert protocol.load_method("replaceme").as_patch(fit.tensors) is None


N_EPOCHS = 15
LEARNING_RATE = 0.003


class CosineBatch:
    """All tokens of one source: the outputs of an MLP, and what they should become."""

    def __init__(self, model: PreTrainedModel, texts: list[Text]) -> None:
        streams = np.concatenate(streams_of(model, texts), axis=1)
        mlp_output = np.concatenate(mlp_outputs(model, "llama", 1, texts))
        self.mlp_output = torch.tensor(mlp_output)
        self.targets = torch.tensor(mlp_output + streams[4] - streams[2])

    def distances(self, operator: torch.Tensor) -> torch.Tensor:
        """The cosine distance of each token."""
        mapped = self.mlp_output + self.mlp_output @ operator
        return 1 - torch.cosine_similarity(mapped, self.targets, dim=1)


def train_with_adam(batches: list[CosineBatch]) -> torch.Tensor:
    """The operator after all epochs over one batch per source, by the formulas of Adam."""
    operator = torch.zeros(32, 32, dtype=torch.float64, requires_grad=True)
    first_moment = torch.zeros(32, 32, dtype=torch.float64)
    second_moment = torch.zeros(32, 32, dtype=torch.float64)
    for step in range(1, 2 * N_EPOCHS + 1):
        source_index = (step - 1) % 2
        loss = SOURCE_WEIGHTS[source_index] * batches[source_index].distances(operator).sum()
        (gradient,) = torch.autograd.grad(loss, operator)
        first_moment = 0.9 * first_moment + 0.1 * gradient
        second_moment = 0.999 * second_moment + 0.001 * gradient**2
        first_unbiased = first_moment / (1 - 0.9**step)
        second_unbiased = second_moment / (1 - 0.999**step)
        update = first_unbiased / (second_unbiased.sqrt() + 1e-8)
        operator = (operator - LEARNING_RATE * update).detach().requires_grad_()
    return operator.detach()


def test_the_cosine_form_of_replaceme_is_adam_on_the_cosine_distance_of_the_tokens() -> None:
    model = tiny.model()
    options = ReplaceMe(objective="cosine", epochs=N_EPOCHS, learning_rate=LEARNING_RATE)

    fit = fit_method(model, options, [(1, 2), (2, 4)])[2, 4]

    identity = torch.eye(32)
    splits: list[tuple[Any, bool | None]] = [(fit.validated, False), (fit.tensors, None)]
    for tensors, is_heldout in splits:
        batches: list[CosineBatch] = []
        for weight in SOURCE_WEIGHTS:
            texts = texts_of(weighted_sources(), is_heldout)
            source_texts = [text for text in texts if text.weight == weight]
            batches.append(CosineBatch(model, source_texts))
        operator = tensors["operator"].double()
        expected = train_with_adam(batches)
        assert relative_distance(operator + identity, expected + identity) < 1e-4
        zero = torch.zeros(32, 32, dtype=torch.float64)
        distance_before = torch.cat([batch.distances(zero) for batch in batches]).mean()
        distance_after = torch.cat([batch.distances(operator) for batch in batches]).mean()
        assert distance_after < 0.9 * distance_before
    assert "ridge" not in fit.facts
    assert fit.facts["heldout_error"] > 0
    assert fit.facts["parameters"] == 0


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, sorted(OUTPUT_PROJECTIONS)))
def test_replaceme_folds_into_a_stock_checkpoint_that_generates(
    family: str, tmp_path: Path
) -> None:
    model = tiny.model(family)
    base_logits = logits_of(model)
    fits = fit_method(model, ReplaceMe(), RUNS)

    variant = repaired_variant(model, REMOVED_UNITS, "replaceme", fits)

    assert torch.equal(logits_of(model), base_logits), "the base model is not touched"
    first_operator = fits[1, 2].tensors["operator"]
    second_operator = fits[3, 5].tensors["operator"]
    module_changes: dict[nn.Module, Change] = {
        output_projection(model, family, 0): lambda output: output + output @ first_operator,
        output_projection(model, family, 2): lambda output: output + output @ second_operator,
    }
    expected = logits_with_hooks(model, {1: skip, 3: skip, 4: skip}, module_changes)
    bare = materialise(model, {"units": REMOVED_UNITS})
    torch.testing.assert_close(logits_of(variant), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits_of(bare), expected, atol=1e-2)
    assert_stock_checkpoint(variant, tmp_path / "export")


def assert_stock_checkpoint(variant: PreTrainedModel, folder: Path) -> None:
    """It is loaded with the same logits, and generates with its cache as without."""
    assert save.save_variant(variant, folder) == "stock"
    reloaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits_of(reloaded), logits_of(variant), atol=1e-6, rtol=1e-6)

    def generate(use_cache: bool) -> torch.Tensor:
        return reloaded.generate(
            tiny.tokens(1, 6),
            use_cache=use_cache,
            max_new_tokens=5,
            do_sample=False,
            pad_token_id=3,
            eos_token_id=None,
        )

    assert torch.equal(generate(use_cache=True), generate(use_cache=False))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "mixtral"])
def test_replaceme_is_refused_where_the_mlp_output_is_changed_before_the_stream(
    family: str,
) -> None:
    """By a norm, or by the weights of experts."""
    with pytest.raises(LaminaError, match=f"'{family}' has .*ghost or linearpatch"):
        fit_method(tiny.model(family), ReplaceMe(), [(2, 4)])


def test_replaceme_is_refused_where_a_norm_is_on_the_stream() -> None:
    model = tiny.model("opt", do_layer_norm_before=False)

    with pytest.raises(LaminaError, match="'opt' has a norm"):
        fit_method(model, ReplaceMe(), [(2, 4)])


def test_replaceme_is_refused_where_no_mlp_is_before_the_run() -> None:
    with pytest.raises(LaminaError, match=r"layer 0 has none before it.*protect: \[0\]"):
        fit_method(tiny.model(), ReplaceMe(), [(0, 2)])


def test_replaceme_is_refused_for_quantised_weights() -> None:
    model = tiny.model("bitnet")
    model.config.quantization_config = {"quant_method": "bitnet"}

    with pytest.raises(LaminaError, match="'bitnet' is quantised"):
        fit_method(model, ReplaceMe(), [(2, 4)])

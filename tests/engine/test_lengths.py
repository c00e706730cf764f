"""What models do from some length on (windows, chunks, rotations) is right, or refused.

Expected values are from plain forward passes of the model with layers bypassed by hooks.
"""

from itertools import chain
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from tests.families import configurations
from tests.families.configurations import DEPTH
from tests.families.trials import bypassed, close, scored, stack, text

LIMIT = 24
"""Tokens after which each of the models does something else."""
HEADS = {"head_dim": 8, "num_attention_heads": 4}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": LIMIT,
    "short_factor": [1.0] * 4,
    "long_factor": [3.0, 2.0, 4.0, 5.0],
}
LONGROPE_WITHOUT_LIMIT = LONGROPE | {"long_factor": [1.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}

LIMITED_MODELS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": LIMIT},
    "gpt_oss": {"sliding_window": LIMIT},
    # Its window counts positions in the row, and no entry of its layers says so.
    "gpt_neo": {"window_size": LIMIT},
    "llama4_text": {"attention_chunk_size": LIMIT},
    "deepseek_v4": {"sliding_window": LIMIT},
    "recurrent_gemma": {"attention_window_size": LIMIT},
    "deepseek_v32": {"index_topk": LIMIT, "index_n_heads": 32},
    "glm_moe_dsa": {"index_topk": LIMIT, "index_n_heads": 32},
    "llama": {"rope_parameters": LONGROPE, **HEADS},
}
# Bart has no limit, but counts positions in the row.
SWEPT_MODELS = LIMITED_MODELS | {"bart": {}}


def long_and_short_samples() -> list[Sample]:
    """A text and two questions that are shorter than the limit, and a longer question."""
    text_ids = text(17, 7)
    samples = [Sample(0, "text", 0, (Row(text_ids[:1], text_ids[1:], 16),), "0")]
    for index, n_context_tokens in enumerate((10, 12, 60), start=1):
        context = text(n_context_tokens, index)
        rows: list[Row] = []
        for n_tokens in (1, 6, 3):
            continuation = text(n_tokens, 10 * index + n_tokens)
            rows.append(Row(context, continuation, n_tokens))
        samples.append(Sample(index, "choices", index % 3, tuple(rows), str(index)))
    return samples


@pytest.mark.parametrize("model_type", SWEPT_MODELS)
def test_a_sweep_of_lines_beyond_the_limit_is_right(model_type: str) -> None:
    model = configurations.model(model_type, **SWEPT_MODELS[model_type])
    samples = long_and_short_samples()
    rows = list(chain.from_iterable(sample.rows for sample in samples))

    scores = sweep.sweep_units(model, samples, ["1", "4"])

    for unit, bypassed_layers in {"none": [], "1": ["1"], "4": ["4"]}.items():
        measured = torch.from_numpy(scores.loglikelihood[scores.index[unit]])
        with bypassed(stack(model), bypassed_layers):
            expected = scored(model, rows)
        close(measured, expected, f"without {unit}:")


@pytest.mark.parametrize("model_type", LIMITED_MODELS)
def test_each_of_these_models_does_something_else_beyond_the_limit(model_type: str) -> None:
    """Otherwise the test above would say nothing."""
    settings = LIMITED_MODELS[model_type]
    unlimited_settings: dict[str, Any] = {}
    for name, value in settings.items():
        unlimited_settings[name] = 10 * LIMIT if value == LIMIT else value
    if model_type == "llama":
        unlimited_settings["rope_parameters"] = LONGROPE_WITHOUT_LIMIT
    token_ids = text(60, 3)
    row = Row(token_ids[:30], token_ids[30:], 1)

    loglikelihood = scored(configurations.model(model_type, **settings), [row])
    unlimited = scored(configurations.model(model_type, **unlimited_settings), [row])

    assert (loglikelihood - unlimited).abs() > 1e-3


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": LIMIT, **HEADS}),
        # With few heads, many tokens are worth exactly nothing; the row's length decides which
        # of them are kept.
        ("deepseek_v32", {"index_topk": LIMIT, "index_n_heads": 4}),
        ("hy_v4", {"index_topk": LIMIT}),
        # It keeps the best keys, and which these are depends on the length, also after the first
        # half of a text.
        ("doge", {"keep_window_size": LIMIT}),
        ("doge", {"keep_window_size": 40}),
        ("doge", {"keep_window_size": 50}),
    ],
)
def test_a_sweep_whose_numbers_depend_on_the_length_of_lines_is_refused(
    model_type: str, settings: dict[str, Any]
) -> None:
    model = configurations.model(model_type, **settings)
    message = "in a text of .* tokens than in a shorter one|cannot be cut|cannot be swept"

    with pytest.raises(LaminaError, match=message):
        sweep.sweep_units(model, long_and_short_samples(), ["1", "4"])


@pytest.mark.parametrize("depth", [DEPTH, 3 * DEPTH])
def test_a_deep_model_is_refused_like_a_shallow_one(depth: int) -> None:
    """Long texts run through few of its layers in the proof."""
    settings = {"rope_parameters": DYNAMIC, "max_position_embeddings": LIMIT, **HEADS}
    model = configurations.model("llama", **settings, num_hidden_layers=depth)

    with pytest.raises(LaminaError, match="in a text of .* tokens|cannot be swept"):
        sweep.sweep_units(model, long_and_short_samples(), ["1"])


def test_activations_that_depend_on_the_length_of_lines_are_refused() -> None:
    model = configurations.model("llama", **LIMITED_MODELS["llama"])
    message = (
        "different logits in a batch with a text of 70 tokens than alone .*texts of one length"
    )

    with pytest.raises(LaminaError, match=message):
        capture_similarities(model, [text(20, 0), text(70, 1)])


def test_activations_of_texts_of_one_length_are_captured() -> None:
    model = configurations.model("llama", **LIMITED_MODELS["llama"])

    assert capture_similarities(model, [text(70, 0), text(70, 1)])


def test_activations_of_a_model_without_a_limit_are_captured() -> None:
    model = configurations.model("llama", **HEADS)

    assert capture_similarities(model, [text(20, 0), text(70, 1)])


def test_a_model_of_several_residual_streams_is_refused() -> None:
    model = configurations.model("qwen4_exp_text")
    message = "'qwen4_exp_text' has several parallel residual streams"

    with pytest.raises(LaminaError, match=message):
        capture_similarities(model, [text(20, 0), text(30, 1)])


@torch.no_grad()
def mean_norm_after_last_layer(model: PreTrainedModel, token_ids: tuple[int, ...]) -> float:
    output = model(input_ids=torch.tensor([token_ids]), output_hidden_states=True)
    return float(output.hidden_states[-1].norm(dim=-1).mean())


def test_a_model_whose_layers_return_lists_is_captured() -> None:
    model = configurations.model("openai-gpt")
    sequences = [text(20, 0), text(30, 1)]

    rows = capture_similarities(model, sequences)

    norms = [mean_norm_after_last_layer(model, token_ids) for token_ids in sequences]
    assert rows[-1]["norm"] == pytest.approx(sum(norms) / 2, rel=1e-5)

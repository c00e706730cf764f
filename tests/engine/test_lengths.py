"""What models do from some length on (windows, chunks, indexes of the best tokens, rotations by length) is right in
sweeps and captures whose lines reach it, or refused.
"""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from tests.families import configurations
from tests.families.trials import bypassed, close, scored, stack, text

TURN = 24  # tokens after which each of the models does something else
HEADS = {"head_dim": 8, "num_attention_heads": 4}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": TURN,
    "short_factor": [1.0] * 4, "long_factor": [3.0, 2.0, 4.0, 5.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}

TURNING: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": TURN},
    "gpt_oss": {"sliding_window": TURN},
    "gpt_neo": {
        "window_size": TURN
    },  # counts places in the row, and no entry of its layers says so
    "bart": {},  # its positions are places in the row
    "llama4_text": {"attention_chunk_size": TURN},
    "deepseek_v4": {"sliding_window": TURN},
    "recurrent_gemma": {"attention_window_size": TURN},
    "deepseek_v32": {"index_topk": TURN, "index_n_heads": 32},
    "glm_moe_dsa": {"index_topk": TURN, "index_n_heads": 32},
    "llama": {"rope_parameters": LONGROPE, **HEADS},
}


def samples(longest: int = 60) -> list[Sample]:
    """A text and two questions shorter than where models turn, and a question that is longer."""
    words = text(17, 7)
    found = [Sample(0, "text", 0, (Row(words[:1], words[1:], 16),), "0")]
    for number, size in enumerate((10, 12, longest), 1):
        context = text(size, number)
        rows = tuple(
            Row(context, text(length, 10 * number + length), length) for length in (1, 6, 3)
        )
        found.append(Sample(number, "choices", number % 3, rows, str(number)))
    return found


def check_sweep(model: PreTrainedModel) -> None:
    rows = [row for sample in samples() for row in sample.rows]
    found = sweep.sweep_units(model, samples(), ["1", "4"])
    for unit, gone in {"none": [], "1": ["1"], "4": ["4"]}.items():
        with bypassed(stack(model), gone):
            close(
                torch.from_numpy(found.loglikelihood[found.index[unit]]),
                scored(model, rows),
                f"without {unit}:",
            )


@pytest.mark.parametrize("model_type", TURNING)
def test_a_sweep_of_lines_beyond_it_is_right(model_type: str) -> None:
    check_sweep(configurations.model(model_type, **TURNING[model_type]))


def test_each_of_these_models_turns_there() -> None:
    """Otherwise the test above would say nothing."""
    ids = text(60, 3)
    for model_type, settings in TURNING.items():
        other = {name: 10 * TURN for name, value in settings.items() if value == TURN}
        other |= (
            {"rope_parameters": LONGROPE | {"long_factor": [1.0] * 4}}
            if model_type == "llama"
            else {}
        )
        one, two = (
            configurations.model(model_type, **{**settings, **changed}) for changed in ({}, other)
        )
        far = (
            scored(one, [Row(ids[:30], ids[30:], 1)]) - scored(two, [Row(ids[:30], ids[30:], 1)])
        ).abs()
        assert bool(far > 1e-3) == (model_type != "bart"), model_type


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": TURN, **HEADS}),
        # With few heads many tokens are worth exactly nothing, and the length of a row says which of them are kept.
        ("deepseek_v32", {"index_topk": TURN, "index_n_heads": 4}),
        ("hy_v4", {"index_topk": TURN}),
        # It keeps the best keys, and which of them depends on the length: also beyond the first half of a text.
        *(("doge", {"keep_window_size": kept}) for kept in (TURN, 40, 50)),
    ],
)
def test_numbers_that_depend_on_what_runs_beside_them_are_refused(
    model_type: str, settings: dict[str, Any]
) -> None:
    model = configurations.model(model_type, **settings)
    with pytest.raises(
        LaminaError,
        match="in a text of .* tokens than in a shorter one|cannot be cut|cannot be swept",
    ):
        check_sweep(model)


def test_activations_that_depend_on_what_runs_beside_them_are_refused() -> None:
    model = configurations.model("llama", **TURNING["llama"])
    with pytest.raises(
        LaminaError,
        match="different logits in a batch with a text of 70 tokens than alone .*texts of one length",
    ):
        capture_similarities(model, [text(20, 0), text(70, 1)])
    assert capture_similarities(model, [text(70, 0), text(70, 1)])
    assert capture_similarities(configurations.model("llama", **HEADS), [text(20, 0), text(70, 1)])


def test_a_stream_that_is_wider_than_a_token_is_refused_in_words() -> None:
    with pytest.raises(
        LaminaError, match="'qwen4_exp_text' has several residual streams side by side"
    ):
        capture_similarities(configurations.model("qwen4_exp_text"), [text(20, 0), text(30, 1)])


def test_a_layer_that_gives_a_list_is_captured() -> None:
    model, ids = configurations.model("openai-gpt"), [text(20, 0), text(30, 1)]
    with torch.no_grad():
        wanted = (
            model(input_ids=torch.tensor(ids[:1]), output_hidden_states=True)
            .hidden_states[-1]
            .norm(dim=-1)
            .mean()
        )
        other = (
            model(input_ids=torch.tensor(ids[1:]), output_hidden_states=True)
            .hidden_states[-1]
            .norm(dim=-1)
            .mean()
        )
    assert capture_similarities(model, ids)[-1]["norm"] == pytest.approx(
        float(wanted + other) / 2, rel=1e-5
    )

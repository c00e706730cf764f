"""The configuration of a cut model says which layers stay, in whatever way its type says so."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lamina.errors import LaminaError
from lamina.models import cutting
from lamina.models.materialise import materialise
from tests.families import configurations, trials
from tests.given import tiny

REMOVED_UNITS = ["0", "2"]
KEPT_LAYERS = [1, 3, 4]


@pytest.mark.parametrize(
    ("model_type", "settings", "expected_settings"),
    [
        ("deepseek_v3", {"first_k_dense_replace": 2}, {"first_k_dense_replace": 1}),
        ("lfm2_moe", {"num_dense_layers": 4}, {"num_dense_layers": 2}),
        (
            "ernie4_5_moe",
            {"moe_layer_start_index": 1},
            {"moe_layer_start_index": 0, "moe_layer_end_index": 2},
        ),
        ("llama4_text", {}, {"moe_layers": [0, 1, 2], "no_rope_layers": [1, 0, 1]}),
        ("qwen2_moe", {"mlp_only_layers": [1, 2]}, {"mlp_only_layers": [0]}),
        (
            "qwen3_moe",
            {"decoder_sparse_step": 2},
            {"mlp_only_layers": [2], "decoder_sparse_step": 1},
        ),
        ("nemotron_h", {}, {"layer_types": ["moe", "mlp", "linear_attention"]}),
        ("gpt_neo", {}, {"attention_layers": ["local", "local", "global"]}),
        ("bart", {}, {"decoder_layers": 3}),
        # As many numbers as layers, by coincidence.
        ("falcon_h1", {}, {"ssm_multipliers": [1.0] * 5, "num_hidden_layers": 3}),
    ],
)
def test_settings_that_count_layers_are_cut(
    model_type: str, settings: dict[str, Any], expected_settings: dict[str, Any]
) -> None:
    config = configurations.configuration(model_type, **settings)
    cutting.cut_config(config, KEPT_LAYERS, 5)
    for name, value in expected_settings.items():
        assert getattr(config, name) == value, name


def test_settings_of_single_layers_follow_their_layers() -> None:
    config = configurations.configuration("gemma4_text")
    cutting.cut_config(config, KEPT_LAYERS, 5)
    layer_settings = config.to_dict()["per_layer_config"]
    assert layer_settings == {"2": {"head_dim": 16, "num_key_value_heads": 4}}


MODEL_CHANGES: dict[str, dict[str, Any]] = {
    "ernie4_5_moe": {},
    "gpt_neo": {},
    # The larger ones of Gemma 4 share neither embeddings nor keys and values between layers.
    "gemma4_text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "llama4_text": {},
    "bart": {},
}


@pytest.mark.parametrize("model_type", MODEL_CHANGES)
def test_a_cut_model_loads_back_and_generates(model_type: str, tmp_path: Path) -> None:
    model = configurations.model(model_type, **MODEL_CHANGES[model_type])
    variant = materialise(model, {"units": REMOVED_UNITS})
    trials.exported(model, tmp_path, REMOVED_UNITS)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    prompt = tiny.tokens(1, 8)
    settings = {
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
    }
    found_tokens = reloaded.generate(prompt, **settings)
    expected_tokens = variant.generate(prompt, **settings)
    assert torch.equal(found_tokens, expected_tokens)


@pytest.mark.parametrize("model_type", ["diffllama", "jamba"])
def test_an_export_that_would_be_another_model_is_refused_and_removed(
    model_type: str, tmp_path: Path
) -> None:
    refusal = f"export of this '{model_type}' does not load back as the same model.*lamina.load"
    with pytest.raises(LaminaError, match=refusal):
        trials.exported(configurations.model(model_type), tmp_path, REMOVED_UNITS)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize(
    ("window", "condition"), [(6, ""), (None, " in a batch with a longer prompt")]
)
def test_an_export_that_would_generate_other_text_is_refused(
    tmp_path: Path, window: int | None, condition: str
) -> None:
    model = configurations.model("minimax", sliding_window=window)
    refusal = (
        "export of this 'minimax' would generate other text with a cache than without one"
        rf"{condition} \(its"
    )
    with pytest.raises(LaminaError, match=refusal):
        trials.exported(model, tmp_path, REMOVED_UNITS)

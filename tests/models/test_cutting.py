"""The configuration of a cut model says which layers are left, whatever way its type has of saying so."""

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

GONE = ["0", "2"]
KEPT = [1, 3, 4]


@pytest.mark.parametrize(
    ("model_type", "changes", "wanted"),
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
        (
            "gemma4_text",
            {},
            {"per_layer_config": {"2": {"head_dim": 16, "num_key_value_heads": 4}}},
        ),
    ],
)
def test_what_counts_layers_is_cut(
    model_type: str, changes: dict[str, Any], wanted: dict[str, Any]
) -> None:
    config = configurations.configuration(model_type, **changes)
    cutting.cut_config(config, KEPT, 5)
    told = config.to_dict() | {
        name: getattr(config, name) for name in wanted if name != "per_layer_config"
    }
    assert {name: told[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    "model_type", ["ernie4_5_moe", "gpt_neo", "gemma4_text", "llama4_text", "bart"]
)
def test_a_cut_model_loads_back_and_generates(model_type: str, tmp_path: Path) -> None:
    # The larger ones of Gemma 4 have no part of a common embedding in each layer.
    changes = (
        {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
        if model_type == "gemma4_text"
        else {}
    )
    model = configurations.model(model_type, **changes)
    trials.exported(model, tmp_path, GONE)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = tiny.tokens(1, 8)
    told = {
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    assert torch.equal(
        back.generate(ids, **told), materialise(model, {"units": GONE}).generate(ids, **told)
    )


@pytest.mark.parametrize("model_type", ["diffllama", "jamba"])
def test_an_export_that_would_be_another_model_is_refused_and_removed(
    model_type: str, tmp_path: Path
) -> None:
    with pytest.raises(
        LaminaError,
        match=f"export of this '{model_type}' does not load back as the same model.*lamina.load",
    ):
        trials.exported(configurations.model(model_type), tmp_path, GONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


@pytest.mark.parametrize(("window", "where"), [(6, ""), (None, " beside a longer prompt")])
def test_an_export_that_would_generate_other_text_is_refused(
    tmp_path: Path, window: int | None, where: str
) -> None:
    told = f"export of this 'minimax' would generate other text from a cache than without one{where}: its"
    with pytest.raises(LaminaError, match=told):
        trials.exported(configurations.model("minimax", sliding_window=window), tmp_path, GONE)

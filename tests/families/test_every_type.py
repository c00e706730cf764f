"""Every type in transformers' causal-LM mapping is swept rightly or refused, as its docs say.

The docs are docs/families.md. What is right, hooks on the model say (trials.py).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, PretrainedConfig

from tests.families import configurations, table
from tests.given.slow import slow_except

# What the tests of every day try: each kind of layer, and every 24th type.
HYBRIDS = {
    "bamba",
    "deepseek_v32",
    "gemma4_text",
    "gpt_oss",
    "jamba",
    "lfm2",
    "llama4_text",
    "qwen3_next",
}
EVERY_DAY = HYBRIDS | set(configurations.TYPES[::24])


@pytest.mark.parametrize("model_type", slow_except(EVERY_DAY, configurations.TYPES))
def test_a_type_is_right_or_refused(model_type: str) -> None:
    outcomes = table.try_type(model_type)
    for trial, outcome in outcomes.items():
        assert not outcome.startswith(("WRONG", "CRASH")), f"{trial}: {outcome}"
    # Whether it can be swept is what the page says.
    sweep_cell = table.format_row(model_type, outcomes).split("|")[2]
    assert sweep_cell == table.read_rows()[model_type].split("|")[2]


# Numbers that a default leaves out and no model can be built without, chosen groups, sums and
# copies of others.
DEPENDENT_SETTINGS = {
    "attn_layer_indices",
    "audio_vocab_size",
    "encoder_cross_output_size",
    "full_attn_idxs",
    "head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
    "indexer_head_dim",
    "indexer_kv_heads",
    "indexer_n_heads",
    "layer_types",
    "n_routed_experts",
    "n_shared_experts",
    "num_classes",
    "num_experts_per_tok",
    "num_key_value_heads",
    "qk_head_dim",
    "topk_group",
}


def list_features(config: PretrainedConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every switch, whether a number is none, one or more, and the kinds of layers, by setting."""
    for name, value in vars(config).items():
        is_dependent = name.endswith("_token_id") or name in DEPENDENT_SETTINGS
        if isinstance(value, PretrainedConfig):
            yield from list_features(value, f"{prefix}{name}.")
        elif name.startswith("_") or is_dependent:
            continue
        elif isinstance(value, bool) or value is None:
            yield f"{prefix}{name}", value
        elif isinstance(value, int):
            yield f"{prefix}{name}", min(value, 2)
        elif configurations.KIND_SETTINGS.fullmatch(name):
            yield f"{prefix}{name}", {str(kind) for kind in value}


def test_a_tiny_model_has_the_features_of_the_default() -> None:
    """Of all types whose default can be made, and made small."""
    lost_features: list[str] = []
    n_types = 0
    for model_type in configurations.TYPES:
        try:
            default = CONFIG_MAPPING[model_type]()
            small = configurations.configuration(model_type)
        except Exception:  # noqa: BLE001, S112, RUF100 - the table has these
            continue
        n_types += 1
        small_features = dict(list_features(small))
        for name, feature in list_features(default):
            if name in small_features and small_features[name] != feature:
                lost_features.append(f"{model_type}: {name}")
    assert lost_features == []
    assert n_types >= 185

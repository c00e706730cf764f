"""Every type in the causal-LM mapping of transformers is swept rightly or refused, as docs/families.md says."""

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
    outcomes = table.tried(model_type)
    assert not {
        trial: told for trial, told in outcomes.items() if told.startswith(("WRONG", "CRASH"))
    }
    told, known = table.row(model_type, outcomes), table.rows()[model_type]
    assert told.split("|")[:3] == known.split("|")[:3]


# Numbers that a default leaves out and no model can be built without, chosen groups, sums and copies of others.
BESIDE = {
    *(
        "head_dim",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "num_key_value_heads",
        "topk_group",
    ),
    *(
        "attn_layer_indices",
        "layer_types",
        "full_attn_idxs",
        "qk_head_dim",
        "audio_vocab_size",
        "num_classes",
    ),
    *(
        "encoder_cross_output_size",
        "indexer_budget",
        "indexer_compress_ratio",
        "indexer_head_dim",
        "indexer_kv_heads",
    ),
    "indexer_n_heads",
}


def features(config: PretrainedConfig, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every switch, whether each number is none, one or more, and the kinds of layers, by the names of settings."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from features(value, f"{where}{name}.")
        elif name.startswith("_") or name.endswith("_token_id") or name in BESIDE:
            continue
        elif isinstance(value, bool) or value is None:
            yield f"{where}{name}", value
        elif isinstance(value, int):
            yield f"{where}{name}", min(value, 2)
        elif configurations._KINDS.fullmatch(name):
            yield f"{where}{name}", {str(kind) for kind in value}


def test_a_tiny_model_has_the_features_of_the_default() -> None:
    """Of all types whose default can be made, and made small."""
    other, made = {}, 0
    for model_type in configurations.TYPES:
        try:
            default, small = CONFIG_MAPPING[model_type](), configurations.configuration(model_type)
        except Exception:  # noqa: BLE001, S112, RUF100 - the table has these
            continue
        told, made = dict(features(small)), made + 1
        if lost := {
            name: value for name, value in features(default) if name in told and told[name] != value
        }:
            other[model_type] = lost
    assert other == {} and made >= 185

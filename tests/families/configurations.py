"""A tiny random model of any type in transformers' causal-LM mapping, by rules about the names of its settings.

No type has an entry here: its default configuration is walked through, and each number becomes small by what its name
says it counts. Where a list has one entry per layer, each kind of layer in the default is among the few that stay.
"""

import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.configuration_utils import ALLOWED_LAYER_TYPES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
DEPTH = 5
WIDTH = 32
HEADS = 4
VOCABULARY = 64
CONTEXT = 128
WINDOW = 6

_LAYERS = r"num_hidden_layers|n_layers?|num_layers|num_blocks|(num_)?(decoder|encoder)_layers"
# The first rule whose pattern is the whole name holds.
_RULES: list[tuple[str, int]] = [
    (_LAYERS, DEPTH),
    (r"num_kv_shared_layers", 2),
    (r"hidden_size_per_layer_input", 8),
    (r"pad_token_id|.*pad_token_id", 3),
    (r"bos_token_id|decoder_start_token_id", 1),
    (r"eos_token_id|(sep|cls|mask|eod|image|audio|video|forced_eos)_token_id", 2),
    (r".*vocab_size.*|codebook_size|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"(num_)?(max|maximum)_position.*|n_positions|n_ctx|"
     r"max_seq_len|context_length|model_max_length|max_.*_positions", CONTEXT),
    (r"n_groups|mamba_n_?groups|n_group|num_expert_group|o_groups", 2),
    (r"topk_group|num_limited_groups", 1),
    # As in use: texts are shorter than what an indexer keeps. Among what it leaves out, ties are broken by the batch.
    (r"index_topk|keep_window_size", VOCABULARY),
    (r"num_experts_per_tok(en)?|moe_(top)?k|.*top_?k.*", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 2),
    (r"n_routed_experts|num_experts|num_local_experts|moe_num_experts|zero_expert_num", 4),
    (r".*(sliding_window|window_size|window_len)|.*chunk_size|"
     r"chunk_length|attention_chunk_size|.*attn_chunk_length|local_attention", WINDOW),
    (r"moe_layer_end_index", DEPTH - 1),
    (r"num_key_value_heads|num_kv_heads|swa_num_key_value_heads|kv_n_heads|linear_num_key_heads|num_query_groups", 2),
    (r"mamba_(n|num)_heads|(n|num)_mamba_heads", 8),
    (r"indexer_kv_heads", 1),
    (r"indexer_budget", 8),
    (r"indexer_compress_ratio", 2),
    (r"n_heads?|num_(attention_)?heads|.*attention_heads|"
     r"linear_num(_value)?_heads|index(er)?_n_heads|swa_num_attention_heads|attention_heads", HEADS),
    (r"attention_head_dim", 2 * WIDTH // HEADS),
    (r"qk_rope_head_dim", 4),
    (r"mamba_d_head|mamba_head_?dim|.*head_dim|d_head|"
     r"dim_head|d_kv|kv_channels|attention_head_size|d_rel", WIDTH // HEADS),
    (r"rotary_dim", 4),
    (r".*_rank|.*_lowrank|.*state_size|.*d_state", 8),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r".*intermediate_size.*|n_inner|.*ffn_(dim|hidden_size)|"
     r"d_inner|d(im)?_?ff|feed_forward_size|prompt_mid_dim", 48),
    (r"hidden_size|n_embd|d_model|.*emb.*_dim|.*embedding_size|"
     r"hidden_dim|lru_width|dim_model_base|emb_dim|attention_hidden_size|.*_hidden_size", WIDTH),
]  # fmt: skip
# What the default leaves out, and no model can be built or write text without.
_WANTED = re.compile(
    r"\w+_token_id|head_dim|n_routed_experts|n_shared_experts|num_experts_per_tok|num_key_value_heads|indexer_\w+"
)
_KINDS = re.compile(
    r"layer_types|layers_block_type|.*_layer_types|indexer_types|block_types|attn_layers"
)


def configuration(model_type: str, **changes: Any) -> PretrainedConfig:
    """The default configuration of a type with each of its numbers made small."""
    return _small(CONFIG_MAPPING[model_type](), changes)


def _small(default: PretrainedConfig, changes: dict[str, Any]) -> PretrainedConfig:
    kind = type(default)
    # A part may have other switches in the default of the whole than alone.
    alone = vars(kind())
    settings: dict[str, Any] = {
        name: value
        for name, value in vars(default).items()
        if isinstance(value, bool) and name in alone and value != alone[name]
    }
    told = vars(default) | default.to_dict()
    for name, value in told.items():
        if (
            isinstance(value, bool)
            or name.startswith("_")
            or name in ("id2label", "label2id", "model_type")
        ):
            continue
        nested = vars(default).get(name)
        if isinstance(nested, PretrainedConfig):
            settings[name] = _small(nested, {}).to_dict()
        elif isinstance(value, int) or (value is None and _WANTED.fullmatch(name)):
            number = _number(name)
            # What the default has none or one of stays so; the numbers of special tokens count nothing.
            if number is not None and (value is None or value > 1 or name.endswith("_token_id")):
                settings[name] = 1 if value == 1 and number == 2 else number
        elif _KINDS.fullmatch(name) and (value or (name == "layer_types" and _kinds(kind))):
            # Layers that share keys and values need one of their kind before them.
            every = value or _kinds(kind)
            settings[name] = _few(
                list(dict.fromkeys(every)) if told.get("num_kv_shared_layers") else every
            )
        elif name == "attention_types" and value:
            settings[name] = [[[each], 1] for each in _few(value[0][0] * DEPTH)]
    heads = [name for name in ("num_key_value_heads", "num_attention_heads") if name in told]
    if len(heads) == 2 and told[heads[0]] == told[heads[1]]:
        settings[heads[0]] = HEADS
    if "expand" in told and "num_heads" in told:
        settings["num_heads"] = told["expand"] * HEADS
    halves = ("qk_nope_head_dim", "qk_rope_head_dim")
    for name in ("qk_head_dim", "swa_head_dim"):
        if all(told.get(half) for half in halves) and told.get(name) == sum(
            told[half] for half in halves
        ):
            settings[name] = sum(settings[half] for half in halves)
    if told.get("qk_rope_head_dim") and told.get("head_dim") == told["qk_rope_head_dim"]:
        settings["head_dim"] = settings["qk_rope_head_dim"]
    for name in [name for name in settings if name.endswith("embedding_size")]:
        # An embedding of another width than the stream has a map between them.
        if told[name] != told.get("hidden_size"):
            settings[name] = WIDTH // 2
    if "attn_layer_indices" in told and told["attn_layer_indices"] is None:
        # None would leave no attention, which no model has.
        settings["attn_layer_indices"] = [1, 3]
    if told.get("attention_hidden_size") == 2 * (told.get("hidden_size") or 0):
        settings["attention_hidden_size"] = 2 * WIDTH
    if told.get("languages"):
        settings["default_language"] = told["languages"][0]
    if told.get("rope_parameters") == {} and settings.get("layer_types"):
        # Each kind of layer has its own, and the default none.
        rotation = {"rope_type": "default", "rope_theta": 10000.0}
        settings["rope_parameters"] = dict.fromkeys(settings["layer_types"], rotation)
    if told.get("per_layer_config"):
        settings["per_layer_config"] = _per_layer(told, settings)
    return kind(**{**settings, **changes})


def _number(name: str) -> int | None:
    return next((number for pattern, number in _RULES if re.fullmatch(pattern, name)), None)


def _kinds(kind: type[PretrainedConfig]) -> list[str]:
    """The kinds of layers that the code of a type asks for, where its configuration has no default."""
    code = sys.modules[kind.__module__].__file__ or ""
    text = Path(code.replace("configuration_", "modeling_")).read_text(encoding="utf-8")
    return [each for each in ALLOWED_LAYER_TYPES if f'"{each}"' in text]


def _few(kinds: list[Any]) -> list[Any]:
    """The first entries of a list, and at its end those that would be missing."""
    few = (
        (kinds * DEPTH)[:DEPTH]
        if len(set(kinds)) == len(kinds)
        else kinds[:DEPTH] + [kinds[-1]] * (DEPTH - len(kinds))
    )
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in few]
    return few[: DEPTH - len(missing)] + missing


def _per_layer(told: dict[str, Any], settings: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What single layers have of their own, for the layers of the same kind among the few."""
    kinds: dict[str, dict[str, int]] = {}
    for number, own in told["per_layer_config"].items():
        small = {
            name: 2 * (_number(name) or 0) if name == "head_dim" else (_number(name) or 0)
            for name in own
        }
        small |= (
            {"num_key_value_heads": HEADS}
            if own.get("num_key_value_heads") == own.get("num_attention_heads")
            else {}
        )
        kinds[told["layer_types"][int(number)]] = {
            name: value for name, value in small.items() if value
        }
    return {str(n): kinds[kind] for n, kind in enumerate(settings["layer_types"]) if kind in kinds}


def model(
    model_type: str, seed: int = 0, kind: Any = AutoModelForCausalLM, **changes: Any
) -> PreTrainedModel:
    """A random model in evaluation mode, its weights large enough that each layer matters."""
    config = configuration(model_type, **changes)
    torch.manual_seed(seed)
    built: PreTrainedModel = kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "conv" not in name:
                parameter.mul_(5)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def seeing(model_type: str) -> PreTrainedModel:
    """As `model`, of a type that sees: with its tower for images."""
    changes: dict[str, Any] = {}
    if configuration(model_type).vision_config is None:
        changes["vision_config"] = _small(
            CONFIG_MAPPING[model_type].sub_configs["vision_config"](), {}
        ).to_dict()
    if model_type == "qwen2_5_vl":
        # Positions of time, height and width share the head's channels, by numbers that stand in the code alone.
        text = configuration(model_type).text_config.to_dict()
        changes["text_config"] = text | {
            "rope_parameters": text["rope_parameters"] | {"mrope_section": [2, 1, 1]}
        }
    return model(model_type, 0, AutoModelForImageTextToText, **changes)

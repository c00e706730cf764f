"""A tiny random model of any type in transformers' causal-LM mapping, by rules about its settings.

No type has an entry here. Its default configuration is walked through, and each number becomes
small by what its name says it counts. Where a list has one entry per layer, each kind of layer in
the default is among the few that stay.
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

Settings = dict[str, Any]

# The first rule whose pattern is the whole name holds.
NUMBER_RULES: list[tuple[str, int]] = [
    (r"num_hidden_layers|n_layers?|num_layers|num_blocks", DEPTH),
    (r"(num_)?(decoder|encoder)_layers", DEPTH),
    (r"num_kv_shared_layers", 2),
    (r"hidden_size_per_layer_input", 8),
    (r"pad_token_id|.*pad_token_id", 3),
    (r"bos_token_id|decoder_start_token_id", 1),
    (r"eos_token_id|(sep|cls|mask|eod|image|audio|video|forced_eos)_token_id", 2),
    (r".*vocab_size.*|codebook_size|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"(num_)?(max|maximum)_position.*|n_positions|n_ctx", CONTEXT),
    (r"max_seq_len|context_length|model_max_length|max_.*_positions", CONTEXT),
    (r"n_groups|mamba_n_?groups|n_group|num_expert_group|o_groups", 2),
    (r"topk_group|num_limited_groups", 1),
    # As in use: texts are shorter than what an indexer keeps. Among what it leaves out, ties are
    # broken by the batch.
    (r"index_topk|keep_window_size", VOCABULARY),
    (r"num_experts_per_tok(en)?|moe_(top)?k|.*top_?k.*", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 2),
    (r"n_routed_experts|num_experts|num_local_experts|moe_num_experts|zero_expert_num", 4),
    (r".*(sliding_window|window_size|window_len)|.*chunk_size", WINDOW),
    (r"chunk_length|attention_chunk_size|.*attn_chunk_length|local_attention", WINDOW),
    (r"moe_layer_end_index", DEPTH - 1),
    (r"num_key_value_heads|num_kv_heads|swa_num_key_value_heads|kv_n_heads", 2),
    (r"linear_num_key_heads|num_query_groups", 2),
    (r"mamba_(n|num)_heads|(n|num)_mamba_heads", 8),
    (r"indexer_kv_heads", 1),
    (r"indexer_budget", 8),
    (r"indexer_compress_ratio", 2),
    (r"n_heads?|num_(attention_)?heads|.*attention_heads", HEADS),
    (r"linear_num(_value)?_heads|index(er)?_n_heads|swa_num_attention_heads", HEADS),
    (r"attention_head_dim", 2 * WIDTH // HEADS),
    (r"qk_rope_head_dim", 4),
    (r"mamba_d_head|mamba_head_?dim|.*head_dim|d_head", WIDTH // HEADS),
    (r"dim_head|d_kv|kv_channels|attention_head_size|d_rel", WIDTH // HEADS),
    (r"rotary_dim", 4),
    (r".*_rank|.*_lowrank|.*state_size|.*d_state", 8),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r".*intermediate_size.*|n_inner|.*ffn_(dim|hidden_size)", 48),
    (r"d_inner|d(im)?_?ff|feed_forward_size|prompt_mid_dim", 48),
    (r"hidden_size|n_embd|d_model|.*emb.*_dim|.*embedding_size", WIDTH),
    (r"hidden_dim|lru_width|dim_model_base|emb_dim|.*_hidden_size", WIDTH),
]
# What the default leaves out, and no model can be built or write text without.
NEEDED_SETTINGS = re.compile(
    r"\w+_token_id|head_dim|n_routed_experts|n_shared_experts|num_experts_per_tok"
    r"|num_key_value_heads|indexer_\w+"
)
# Lists of the kind of each layer.
KIND_SETTINGS = re.compile(
    r"layer_types|layers_block_type|.*_layer_types|indexer_types|block_types|attn_layers"
)


def configuration(model_type: str, **changes: Any) -> PretrainedConfig:
    """The default configuration of a type with each of its numbers made small."""
    return shrink_config(CONFIG_MAPPING[model_type](), changes)


def shrink_config(default: PretrainedConfig, changes: Settings) -> PretrainedConfig:
    """A configuration of the same class with small numbers, and with these changes."""
    config_class = type(default)
    defaults = vars(default) | default.to_dict()
    settings = set_switches(default)
    for name, value in defaults.items():
        is_label = name in ("id2label", "label2id", "model_type")
        if isinstance(value, bool) or name.startswith("_") or is_label:
            continue
        small_value = shrink_setting(name, value, default, defaults)
        if small_value is not None:
            settings[name] = small_value
    tie_heads(defaults, settings)
    tie_widths(defaults, settings)
    tie_layers(defaults, settings)
    if defaults.get("languages"):
        settings["default_language"] = defaults["languages"][0]
    return config_class(**(settings | changes))


def set_switches(default: PretrainedConfig) -> Settings:
    """The switches that a part has in the default of the whole, and not alone."""
    own_defaults = vars(type(default)())
    switches: Settings = {}
    for name, value in vars(default).items():
        if isinstance(value, bool) and name in own_defaults and value != own_defaults[name]:
            switches[name] = value
    return switches


def shrink_setting(name: str, value: Any, default: PretrainedConfig, defaults: Settings) -> Any:
    """The small value of one setting; None if it stays as it is."""
    nested_config = vars(default).get(name)
    if isinstance(nested_config, PretrainedConfig):
        return shrink_config(nested_config, {}).to_dict()
    if isinstance(value, int) or (value is None and NEEDED_SETTINGS.fullmatch(name)):
        return shrink_number(name, value)
    if KIND_SETTINGS.fullmatch(name):
        kinds = value
        if not kinds and name == "layer_types":
            kinds = read_kinds(type(default))
        if kinds and defaults.get("num_kv_shared_layers"):
            # Layers that share keys and values need one of their kind before them.
            kinds = list(dict.fromkeys(kinds))
        return pick_kinds(kinds) if kinds else None
    if name == "attention_types" and value:
        return [[[kind], 1] for kind in pick_kinds(value[0][0] * DEPTH)]
    return None


def shrink_number(name: str, value: int | None) -> int | None:
    """The small number of a setting; what the default has none or one of stays so."""
    number = find_number(name)
    is_token = name.endswith("_token_id")  # whose number counts nothing
    if number is None or (value is not None and value <= 1 and not is_token):
        return None
    if value == 1 and number == 2:
        return 1
    return number


def find_number(name: str) -> int | None:
    for pattern, number in NUMBER_RULES:
        if re.fullmatch(pattern, name):
            return number
    return None


def read_kinds(config_class: type[PretrainedConfig]) -> list[str]:
    """The kinds of layers that the code of a type asks for; its configuration has no default."""
    code_path = sys.modules[config_class.__module__].__file__ or ""
    modeling_path = Path(code_path.replace("configuration_", "modeling_"))
    code = modeling_path.read_text(encoding="utf-8")
    return [kind for kind in ALLOWED_LAYER_TYPES if f'"{kind}"' in code]


def pick_kinds(kinds: list[Any]) -> list[Any]:
    """The first entries of a list, and at its end those that would be missing."""
    distinct_kinds = list(dict.fromkeys(kinds))
    if len(distinct_kinds) == len(kinds):
        first_kinds = (kinds * DEPTH)[:DEPTH]
    else:
        first_kinds = kinds[:DEPTH] + [kinds[-1]] * (DEPTH - len(kinds))
    missing_kinds = [kind for kind in distinct_kinds if kind not in first_kinds]
    return first_kinds[: DEPTH - len(missing_kinds)] + missing_kinds


def tie_heads(defaults: Settings, settings: Settings) -> None:
    """Numbers and widths of heads that are equal, sums or multiples of others stay so."""
    head_counts = {"num_key_value_heads", "num_attention_heads"}
    has_both = head_counts <= defaults.keys()
    if has_both and len({defaults[name] for name in head_counts}) == 1:
        settings["num_key_value_heads"] = HEADS
    if "expand" in defaults and "num_heads" in defaults:
        settings["num_heads"] = defaults["expand"] * HEADS

    plain_width = defaults.get("qk_nope_head_dim")
    rotary_width = defaults.get("qk_rope_head_dim")
    for name in ("qk_head_dim", "swa_head_dim"):
        if plain_width and rotary_width and defaults.get(name) == plain_width + rotary_width:
            settings[name] = settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"]
    if rotary_width and defaults.get("head_dim") == rotary_width:
        settings["head_dim"] = settings["qk_rope_head_dim"]


def tie_widths(defaults: Settings, settings: Settings) -> None:
    """Widths that differ from that of the stream still differ from it."""
    stream_width = defaults.get("hidden_size")
    for name in settings:
        # An embedding of another width than the stream has a map between them.
        if name.endswith("embedding_size") and defaults[name] != stream_width:
            settings[name] = WIDTH // 2
    if defaults.get("attention_hidden_size") == 2 * (stream_width or 0):
        settings["attention_hidden_size"] = 2 * WIDTH


def tie_layers(defaults: Settings, settings: Settings) -> None:
    """What single layers or kinds of layers have of their own is there for the few layers."""
    if "attn_layer_indices" in defaults and defaults["attn_layer_indices"] is None:
        # None would leave no attention, which no model has.
        settings["attn_layer_indices"] = [1, 3]
    if defaults.get("rope_parameters") == {} and settings.get("layer_types"):
        # Each kind of layer has its own, and the default none.
        rotation = {"rope_type": "default", "rope_theta": 10000.0}
        settings["rope_parameters"] = dict.fromkeys(settings["layer_types"], rotation)
    if defaults.get("per_layer_config"):
        settings["per_layer_config"] = shrink_layer_settings(defaults, settings)


def shrink_layer_settings(defaults: Settings, settings: Settings) -> dict[str, dict[str, int]]:
    """What single layers have of their own, for the layers of the same kind among the few."""
    settings_of_kind: dict[str, dict[str, int]] = {}
    for layer_index, layer_settings in defaults["per_layer_config"].items():
        small_settings: dict[str, int] = {}
        for name in layer_settings:
            number = find_number(name)
            if number:
                small_settings[name] = 2 * number if name == "head_dim" else number
        n_key_value_heads = layer_settings.get("num_key_value_heads")
        if n_key_value_heads == layer_settings.get("num_attention_heads"):
            small_settings["num_key_value_heads"] = HEADS
        settings_of_kind[defaults["layer_types"][int(layer_index)]] = small_settings

    small_layers: dict[str, dict[str, int]] = {}
    for layer_index, kind in enumerate(settings["layer_types"]):
        if kind in settings_of_kind:
            small_layers[str(layer_index)] = settings_of_kind[kind]
    return small_layers


def model(
    model_type: str, seed: int = 0, auto_class: Any = AutoModelForCausalLM, **changes: Any
) -> PreTrainedModel:
    """A random model in evaluation mode, its weights large enough that each layer matters."""
    config = configuration(model_type, **changes)
    torch.manual_seed(seed)
    built: PreTrainedModel = auto_class.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "conv" not in name:
                parameter.mul_(5)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def seeing(model_type: str) -> PreTrainedModel:
    """As `model`, of a type that sees: with its tower for images."""
    changes: Settings = {}
    config = configuration(model_type)
    if config.vision_config is None:
        vision_class = CONFIG_MAPPING[model_type].sub_configs["vision_config"]
        changes["vision_config"] = shrink_config(vision_class(), {}).to_dict()
    if model_type == "qwen2_5_vl":
        # Positions of time, height and width share the head's channels, by numbers that stand in
        # the code alone.
        text_config = config.text_config.to_dict()
        text_config["rope_parameters"]["mrope_section"] = [2, 1, 1]
        changes["text_config"] = text_config
    return model(model_type, 0, AutoModelForImageTextToText, **changes)

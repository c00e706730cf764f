"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The configuration uses this module too, so it does not import torch. What would make a job fail later is refused here.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lamina.errors import LaminaError, at

BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_WIDTHS = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}  # bytes of a weight, by the type it is loaded in
_FLOATS = ("F64", "F32", "F16", "BF16")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")

_CONTEXT_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")  # in the order of lm-eval
_MOST_LAYERS = 10_000
# Formats that transformers turns into floating point numbers on any machine.
DEQUANTISED = ("bitsandbytes", "fp8", "mxfp4")
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")
_OTHER_HEAD = re.compile(
    r"For(MaskedLM|PreTraining|\w+Classification|QuestionAnswering|MultipleChoice)$|(?i:bert|electra|mpnet|encoder)\w*Model$"
)
_TOKENIZER = re.compile(r"token|vocab|merges|spiece|tekken|[.](model|tiktoken|codes)$")
_NO_VOCABULARY = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Tensors that only quantised weights, and weights with an adapter beside them, have.
_QUANTISED = re.compile(r"[.](qweight|qzeros|g_idx|weight_scale(_inv)?|SCB|absmax)$")
_ADAPTED = re.compile(r"[.](base_layer[.]weight|lora_[AB]([.]\w+)?[.]weight)$")
DECODER_LAYER = re.compile(
    r"^(?:(?:model|transformer|gpt_neox|language_model|decoder)[.])*(?:layers|h)[.](\d+)[.]"
)
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_settings(folder: Path, where: str, source: str) -> dict[str, Any]:
    """The settings in the config.json of a model folder. The key `where` of the configuration names it as `source`.

    Raises LaminaError if there is no config.json, it is no JSON object, or it holds impossible values.
    """
    file = folder / "config.json"
    if (adapter := folder / "adapter_config.json").is_file():
        try:
            base = json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]
        except (ValueError, KeyError, TypeError):
            base = "its base model"
        raise LaminaError(
            f"{where}: '{source}' holds an adapter of {base} (adapter_config.json). Merge the two and write the merged "
            "folder (PEFT: merge_and_unload, then save_pretrained, with the tokenizer)."
        )
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json, so it is no Hugging Face model. Write the folder that "
            "holds config.json and *.safetensors (a converted checkpoint, or a snapshot folder of the hub cache)."
        )
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not isinstance(
            settings.get("text_config") or {}, dict
        ):
            raise ValueError("no object")
    except ValueError as error:
        raise LaminaError(
            f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file."
        ) from error
    with at(where):
        for key in LAYER_KEYS:
            check_depth(file, key, decoder_settings(settings).get(key))
    return settings


def decoder_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the decoder, which multimodal checkpoints nest."""
    return {**settings, **(settings.get("text_config") or {})}


def check_loadable(folder: Path, settings: Mapping[str, Any], where: str, source: str) -> None:
    """Refuse what no job could load or judge, as far as the names of files and config.json tell.

    Raises LaminaError, which says what the folder holds, and what to take instead.
    """
    model, config = f"{where}: '{source}'", f"{where}: '{source}/config.json'"
    decoder, names = decoder_settings(settings), {path.name for path in folder.iterdir()}
    if settings.get("is_encoder_decoder"):
        raise LaminaError(
            f"{config} is of an encoder-decoder ({settings.get('model_type')}), whose layers are of two kinds. Write a "
            "model that is a decoder alone."
        )
    classes = [name for name in settings.get("architectures") or () if isinstance(name, str)]
    if (
        classes
        and not settings.get("is_decoder")
        and all(_OTHER_HEAD.search(name) for name in classes)
    ):
        raise LaminaError(
            f"{config} is of a {classes[0]}, which does not predict the next token. Write a causal language model."
        )
    method = quantisation(settings)
    if method and method not in DEQUANTISED:
        raise LaminaError(
            f"{model} is quantised ({method}), and layers are measured and cut in floating point. Write the checkpoint "
            f"that it was made from, or one that is dequantised here: {', '.join(DEQUANTISED)}, or a .gguf file."
        )
    attention = decoder.get("_attn_implementation") or decoder.get("attn_implementation")
    if "flash" in str(attention) and find_spec("flash_attn") is None:
        raise LaminaError(
            f"{config} asks for `{attention}`, and the package flash_attn is not installed. Delete that line: other "
            "attention gives the same numbers."
        )
    types, depth = (
        decoder.get("layer_types"),
        next((decoder[key] for key in LAYER_KEYS if key in decoder), None),
    )
    if isinstance(types, list) and isinstance(depth, int) and len(types) != depth:
        raise LaminaError(
            f"{config} says {depth} layers and gives {len(types)} `layer_types`. Give one for each layer: after a cut, "
            "delete those of the layers that went."
        )
    if not (folder / WHOLE).is_file() and not (folder / INDEX).is_file():
        others = sorted(
            name
            for name in names
            if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5"))
        )
        if others:
            raise LaminaError(
                f"{model} has pickled weights only ({', '.join(others[:3])}), which can run code when loaded. Convert "
                "them: load the model where you trust it and call `save_pretrained(folder, safe_serialization=True)`."
            )
        if ggufs := sorted(name for name in names if name.endswith(".gguf")):
            raise LaminaError(
                f"{model} is a folder of GGUF files. Write one of them: source: {source}/{ggufs[0]}"
            )
        found = sorted(name for name in names if name.endswith(".safetensors"))
        has = (
            f"only {', '.join(found[:3])}, which is not loaded"
            if found
            else "no weights: no *.safetensors file"
        )
        raise LaminaError(
            f"{model} has {has}. Download the model again, completely: transformers reads {WHOLE}, or the files that "
            f"{INDEX} names."
        )


def quantisation(settings: Mapping[str, Any]) -> str | None:
    """The method by which the weights of a folder are quantised, as its config.json says; None if they are not."""
    decoder = decoder_settings(settings)
    if isinstance(decoder.get("quantization"), dict):
        return "mlx"
    stated = decoder.get("quantization_config")
    return (
        str(stated.get("quant_method", "an unnamed method"))
        if isinstance(stated, dict) and stated
        else None
    )


def is_quantised(source: str | Path) -> bool:
    """Whether a model's source is dequantised first: a GGUF file by its name, a folder by its config.json."""
    file = Path(source, "config.json")
    if str(source).endswith(".gguf"):
        return True
    try:
        return (
            file.is_file()
            and quantisation(json.loads(file.read_text(encoding="utf-8"))) is not None
        )
    except (ValueError, AttributeError, TypeError):  # which `read_settings` refuses
        return False


def check_tokenizer(folder: Path, entry: str, chat_template: bool) -> None:
    """Refuse a folder without a tokenizer or, if the `entry` of its model wants one, without a chat template.

    Raises LaminaError as the names of files tell; whether a tokenizer loads and fits is seen when it is loaded.
    """
    names = {path.name for path in folder.iterdir()}
    tables = [name for name in names if _TOKENIZER.search(name) and name not in _NO_VOCABULARY]
    if not tables and not any(name.endswith(".py") for name in names):
        raise LaminaError(
            f"{entry}.source: {folder} has no tokenizer. Put tokenizer.json and tokenizer_config.json beside its "
            "weights, those of the model that it was made from."
        )
    if chat_template and not has_chat_template(folder):
        raise LaminaError(
            f"{entry}.chat_template: the tokenizer in {folder} has no chat template. Write chat_template: false, or "
            "put chat_template.jinja beside its weights."
        )


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder has a chat template, in a file of its own or in its settings."""
    if any(path.name.startswith("chat_template") for path in folder.iterdir()):
        return True
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        return False
    return '"chat_template"' in settings.read_text(encoding="utf-8", errors="replace")


def weight_files(folder: Path) -> list[Path]:
    """The files from which transformers loads the weights of a folder; empty if there are none.

    Raises LaminaError if an index is damaged, stands beside a whole checkpoint, or names a file that is not in the
    folder.
    """
    return sorted({folder / shard for shard in _index(folder).values()}) or [
        path for path in (folder / WHOLE,) if path.is_file()
    ]


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a folder says; empty without an index."""
    index = folder / INDEX
    if not index.is_file():
        return {}
    try:
        read = json.loads(index.read_text(encoding="utf-8"))
        places: dict[str, str] = read["weight_map"]
        named, whole = set(places.values()), isinstance(read.get("metadata"), dict)
        outside = sorted(shard for shard in named if Path(shard).name != shard)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LaminaError(f"{index} is damaged. Download or save the model again.") from error
    if outside:
        raise LaminaError(
            f"{index} names {outside[0]}, which is not in its folder. Put the file there and name it so."
        )
    if missing := sorted(shard for shard in named if not (folder / shard).is_file()):
        raise LaminaError(
            f"{index} names {missing[0]}, which is not there ({len(missing)} of {len(named)} files are missing). "
            "Download the model again, completely."
        )
    if not whole and not (folder / WHOLE).is_file():
        raise LaminaError(
            f'{index} has no `metadata`, and transformers asks for it. Write "metadata": {{}} there.'
        )
    if (folder / WHOLE).is_file() and named != {WHOLE}:
        raise LaminaError(
            f"{folder} holds two checkpoints, {WHOLE} and the files that {INDEX} names. Delete the one that is not "
            "meant."
        )
    return places


def check_names(
    tensors: Mapping[str, Mapping[str, Any]], folder: Path, settings: Mapping[str, Any], where: str
) -> None:
    """Refuse stored tensors that are not those of the model in config.json, as far as names and types tell.

    Raises LaminaError if weights are quantised though config.json does not say so, an adapter lies within them, or
    there are more or fewer layers than config.json says. The rest is compared when the model is loaded.
    """
    decoder = decoder_settings(settings)
    if quantisation(settings) is None:
        packed = [
            name
            for name, each in tensors.items()
            if name.endswith(".weight") and each["dtype"] not in _FLOATS
        ]
        if odd := sorted(name for name in tensors if _QUANTISED.search(name)) or sorted(packed):
            raise LaminaError(
                f"{where}: {folder} stores {odd[0]} ({tensors[odd[0]]['dtype']}): its weights are quantised, which its "
                "config.json does not say. Write the checkpoint that it was made from."
            )
    if odd := sorted(filter(_ADAPTED.search, tensors)):
        raise LaminaError(
            f"{where}: {folder} stores {odd[0]}, an adapter beside the weights. Merge the two and save the merged "
            "model (PEFT: merge_and_unload, then save_pretrained)."
        )
    stored = {int(found[1]) for found in map(DECODER_LAYER.match, tensors) if found}
    depth = next((decoder[key] for key in LAYER_KEYS if isinstance(decoder.get(key), int)), None)
    later = decoder.get("num_nextn_predict_layers")  # stored behind the others, and not loaded
    most = (depth or 0) + (later if isinstance(later, int) else 0)
    if stored and depth and not {*range(depth)} <= stored <= {*range(most)}:
        raise LaminaError(
            f"{where}: {folder} stores {len(stored)} layers, the last one {max(stored)}, and its config.json says "
            f"{depth} layers: another model would be measured. Correct `num_hidden_layers`, or save the model again."
        )


def read_weights(folder: Path, where: str) -> dict[str, dict[str, Any]]:
    """`shape` and `dtype` of each tensor that is loaded, by name; empty if there are none.

    Raises LaminaError as `weight_files` does, or if a file is damaged, a tensor is in two files or not in the file that
    the index says, or a wrapper of training has left its name before all of them.
    """
    tensors: dict[str, dict[str, Any]] = {}
    with at(where):
        places = _index(folder)
        for shard in weight_files(folder):
            header = _read_header(shard)
            if twice := sorted(tensors.keys() & header.keys()):
                raise LaminaError(
                    f"{shard} holds {twice[0]}, which another file holds too. Keep it in one of them."
                )
            tensors |= header
            if lacking := sorted(
                name for name, file in places.items() if file == shard.name and name not in header
            ):
                raise LaminaError(
                    f"{folder / INDEX} looks for {lacking[0]} in {shard.name}, which has no such tensor."
                )
    for prefix in _WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            raise LaminaError(
                f"{where}: every tensor in {folder} is named with '{prefix}' before its name, which a wrapper of "
                "training leaves. Save the model inside of the wrapper again, or rename its tensors."
            )
    return tensors


def stored_width(
    dtype: str, config: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]
) -> int:
    """Bytes of a weight that is loaded as `dtype`; for `auto` in the type of config.json, else that of most numbers."""
    stated = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    counts = Counter[int]()
    for tensor in tensors.values():
        counts[BYTES.get(tensor["dtype"], 0)] += prod(tensor["shape"])
    of_most = max(counts, key=lambda width: (width > 1, counts[width]), default=4)
    return _WIDTHS.get(dtype) or _WIDTHS.get(stated) or of_most


def _read_header(shard: Path) -> dict[str, Any]:
    """`shape` and `dtype` of each tensor in a safetensors file, or a LaminaError that its data is incomplete."""
    try:
        with safe_open(shard, "np") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118, it is no dict
            return {
                key: {"shape": each.get_shape(), "dtype": each.get_dtype()}
                for key, each in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise LaminaError(
            f"{shard} is not a complete safetensors file ({error}). Download or save the model again."
        ) from error


def check_depth(file: Path, key: str, layers: object) -> None:
    """Refuse a number of layers, given under `key` in a file, that no model has."""
    if layers is not None and not (isinstance(layers, int) and 0 < layers <= _MOST_LAYERS):
        raise LaminaError(
            f"{file} says `{key}: {layers}`, which no model has. Restore the file, or download it again."
        )


def context(settings: Mapping[str, Any]) -> int | None:
    """The context, in tokens, that the settings in a config.json state; None if they state none (ALiBi needs none)."""
    text = (
        settings.get("text_config") or settings
    )  # multimodal checkpoints nest the decoder's settings
    limit = next((text[key] for key in _CONTEXT_KEYS if text.get(key) is not None), None)
    return limit if isinstance(limit, int) else None


def check_fits(where: str, tokens: int, limit: int | None, model: str) -> None:
    """Refuse a number of tokens, given under the key `where`, that is more than the context `limit` of a model."""
    if limit is not None and tokens > limit:
        raise LaminaError(
            f"{where}: {tokens} tokens are more than the context of model '{model}', {limit}. Write at most {limit}, "
            "or leave the model out of the studies that use it."
        )


def check_generation(prompt: int, generate: int, limit: int | None, model: str) -> None:
    """Refuse a measurement of efficiency whose prompt and generated tokens are more than the context of a model."""
    if limit is not None and prompt + generate > limit:
        room = min(generate, limit // 2)
        raise LaminaError(
            f"benchmarks.efficiency: a prompt of {prompt} and {generate} generated tokens are more than the context of "
            f"model '{model}', {limit}. Write `efficiency: {{prompt: {limit - room}, generate: {room}}}`."
        )

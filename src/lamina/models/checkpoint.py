"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The checks of a configuration use this module too, so it does not import torch. It refuses what
would make a job fail later.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from lamina.errors import LaminaError, located_at

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
DEQUANTISED = ("bitsandbytes", "fp8", "mxfp4")
"""Formats that transformers turns into floating point numbers on any machine."""

_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"

# Bytes of a number, by its type in safetensors, and by the type that it is loaded in.
_STORED_WIDTHS = {
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
_LOADED_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOATING_TYPES = ("F64", "F32", "F16", "BF16")

_CONTEXT_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")  # in the order of lm-eval
_MOST_LAYERS = 10_000
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
# What wrappers of training put before the names of tensors.
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")
# Classes that do not predict the next token.
_OTHER_HEAD = re.compile(
    r"For(MaskedLM|PreTraining|\w+Classification|QuestionAnswering|MultipleChoice)$"
    r"|(?i:bert|electra|mpnet|encoder)\w*Model$"
)
_TOKENIZER_FILE = re.compile(r"token|vocab|merges|spiece|tekken|[.](model|tiktoken|codes)$")
_FILES_WITHOUT_VOCABULARY = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Tensors that only quantised weights, and weights with an adapter among them, have.
_QUANTISED_TENSOR = re.compile(r"[.](qweight|qzeros|g_idx|weight_scale(_inv)?|SCB|absmax)$")
_ADAPTED_TENSOR = re.compile(r"[.](base_layer[.]weight|lora_[AB]([.]\w+)?[.]weight)$")
_DECODER_LAYER = re.compile(
    r"^(?:(?:model|transformer|gpt_neox|language_model|decoder)[.])*(?:layers|h)[.](\d+)[.]"
)


class TensorHeader(NamedTuple):
    """What the header of a safetensors file says about a tensor."""

    shape: list[int]
    dtype: str  # such as BF16


class _Index(NamedTuple):
    """What the index of a checkpoint in several files says."""

    file_by_tensor: dict[str, str]
    has_metadata: bool


def read_settings(folder: Path, where: str, source: str) -> dict[str, Any]:
    """The settings in the config.json of a model folder.

    where, source: the key of the configuration that names the folder, and what it says.

    Raises LaminaError if there is no config.json, it is no JSON object, or it holds impossible
    values.
    """
    _check_is_no_adapter(folder, where, source)
    file = folder / "config.json"
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json, so it is no Hugging Face model. "
            "Write the folder that holds config.json and *.safetensors (a converted checkpoint, or "
            "a snapshot folder of the hub cache)."
        )
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        is_object = isinstance(settings, dict)
        if not is_object or not isinstance(settings.get("text_config") or {}, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise LaminaError(
            f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file."
        ) from error
    with located_at(where):
        for key in LAYER_KEYS:
            check_depth(file, key, decoder_settings(settings).get(key))
    return settings


def _check_is_no_adapter(folder: Path, where: str, source: str) -> None:
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    try:
        base_model = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError):
        base_model = "its base model"
    raise LaminaError(
        f"{where}: '{source}' holds an adapter of {base_model} (adapter_config.json). Merge the "
        "two and write the merged folder (PEFT: merge_and_unload, then save_pretrained, with the "
        "tokenizer)."
    )


def decoder_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the decoder, which multimodal checkpoints nest."""
    return {**settings, **(settings.get("text_config") or {})}


def stated_depth(decoder: Mapping[str, Any]) -> int | None:
    """The number of layers that the settings of a decoder state; None if they state none."""
    for key in LAYER_KEYS:
        if isinstance(decoder.get(key), int):
            return int(decoder[key])
    return None


def check_depth(file: Path, key: str, layers: object) -> None:
    """Refuse a number of layers, given under `key` in a file, that no model has."""
    if layers is not None and not (isinstance(layers, int) and 0 < layers <= _MOST_LAYERS):
        raise LaminaError(
            f"{file} says `{key}: {layers}`, which no model has. Restore the file, or download it "
            "again."
        )


def check_loadable(folder: Path, settings: Mapping[str, Any], where: str, source: str) -> None:
    """Refuse what no job could load or judge, as far as the names of files and config.json tell.

    Raises LaminaError, which says what the folder holds, and what to write instead.
    """
    model = f"{where}: '{source}'"
    config = f"{where}: '{source}/config.json'"
    decoder = decoder_settings(settings)
    _check_is_decoder(settings, config)
    _check_can_be_dequantised(settings, model)
    _check_attention(decoder, config)
    _check_layer_types(decoder, config)
    _check_has_weights(folder, model, source)


def _check_is_decoder(settings: Mapping[str, Any], config: str) -> None:
    if settings.get("is_encoder_decoder"):
        raise LaminaError(
            f"{config} is of an encoder-decoder ({settings.get('model_type')}), whose layers are "
            "of two kinds. Write a model that is a decoder alone."
        )
    if settings.get("is_decoder"):
        return
    classes = [name for name in settings.get("architectures") or () if isinstance(name, str)]
    if classes and all(_OTHER_HEAD.search(name) for name in classes):
        raise LaminaError(
            f"{config} is of a {classes[0]}, which does not predict the next token. Write a causal "
            "language model."
        )


def _check_can_be_dequantised(settings: Mapping[str, Any], model: str) -> None:
    method = quantisation_method(settings)
    if method and method not in DEQUANTISED:
        raise LaminaError(
            f"{model} is quantised ({method}), and layers are measured and cut in floating point. "
            "Write the checkpoint that it was made from, or one that is dequantised here: "
            f"{', '.join(DEQUANTISED)}, or a .gguf file."
        )


def _check_attention(decoder: Mapping[str, Any], config: str) -> None:
    attention = decoder.get("_attn_implementation") or decoder.get("attn_implementation")
    if "flash" in str(attention) and find_spec("flash_attn") is None:
        raise LaminaError(
            f"{config} asks for `{attention}`, and the package flash_attn is not installed. Delete "
            "that line: other attention gives the same numbers."
        )


def _check_layer_types(decoder: Mapping[str, Any], config: str) -> None:
    layer_types = decoder.get("layer_types")
    depth = stated_depth(decoder)
    if isinstance(layer_types, list) and depth is not None and len(layer_types) != depth:
        raise LaminaError(
            f"{config} says {depth} layers and gives {len(layer_types)} `layer_types`. Give one "
            "for each layer: after a cut, delete those of the removed layers."
        )


def _check_has_weights(folder: Path, model: str, source: str) -> None:
    if (folder / _WEIGHTS_FILE).is_file() or (folder / _INDEX_FILE).is_file():
        return
    names = sorted(path.name for path in folder.iterdir())
    pickled = [name for name in names if name.endswith(_PICKLED_SUFFIXES)]
    if pickled:
        raise LaminaError(
            f"{model} has pickled weights only ({', '.join(pickled[:3])}), which can run code when "
            "loaded. Convert them: load the model where you trust it and call "
            "`save_pretrained(folder, safe_serialization=True)`."
        )
    gguf_files = [name for name in names if name.endswith(".gguf")]
    if gguf_files:
        raise LaminaError(
            f"{model} is a folder of GGUF files. Write one of them: source: "
            f"{source}/{gguf_files[0]}"
        )
    unread = [name for name in names if name.endswith(".safetensors")]
    if unread:
        content = f"only {', '.join(unread[:3])}, which is not loaded"
    else:
        content = "no weights: no *.safetensors file"
    raise LaminaError(
        f"{model} has {content}. Download the model again, completely: transformers reads "
        f"{_WEIGHTS_FILE}, or the files that {_INDEX_FILE} names."
    )


def quantisation_method(settings: Mapping[str, Any]) -> str | None:
    """The method by which weights are quantised, as a config.json says; None if they are not."""
    decoder = decoder_settings(settings)
    if isinstance(decoder.get("quantization"), dict):
        return "mlx"
    stated = decoder.get("quantization_config")
    if isinstance(stated, dict) and stated:
        return str(stated.get("quant_method", "an unnamed method"))
    return None


def is_quantised(source: str | Path) -> bool:
    """Whether a model's source is dequantised before it is read.

    A GGUF file is known by its name, a folder by its config.json.
    """
    if str(source).endswith(".gguf"):
        return True
    file = Path(source, "config.json")
    if not file.is_file():
        return False
    try:
        return quantisation_method(json.loads(file.read_text(encoding="utf-8"))) is not None
    except (ValueError, AttributeError, TypeError):  # which `read_settings` refuses
        return False


def check_tokenizer(folder: Path, entry: str, chat_template: bool) -> None:
    """Refuse a folder without a tokenizer or, if its model's `entry` wants one, a chat template.

    Raises LaminaError as the names of files tell. Whether a tokenizer loads and fits is seen when
    it is loaded.
    """
    names = {path.name for path in folder.iterdir()}
    has_vocabulary = any(
        _TOKENIZER_FILE.search(name) and name not in _FILES_WITHOUT_VOCABULARY for name in names
    )
    has_code = any(name.endswith(".py") for name in names)
    if not has_vocabulary and not has_code:
        raise LaminaError(
            f"{entry}.source: {folder} has no tokenizer. Put tokenizer.json and "
            "tokenizer_config.json next to its weights, those of the model that it was made from."
        )
    if chat_template and not has_chat_template(folder):
        raise LaminaError(
            f"{entry}.chat_template: the tokenizer in {folder} has no chat template. Write "
            "chat_template: false, or put chat_template.jinja next to its weights."
        )


def has_chat_template(folder: Path) -> bool:
    """Whether a folder's tokenizer has a chat template, in a file of its own or in its settings."""
    if any(path.name.startswith("chat_template") for path in folder.iterdir()):
        return True
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        return False
    return '"chat_template"' in settings.read_text(encoding="utf-8", errors="replace")


def weight_files(folder: Path) -> list[Path]:
    """The files from which transformers loads the weights of a folder; empty if there are none.

    Raises LaminaError if an index is damaged, is next to a whole checkpoint, or names a file that
    is not in the folder.
    """
    shards = sorted({folder / shard for shard in _read_index(folder).values()})
    if shards:
        return shards
    weights_file = folder / _WEIGHTS_FILE
    return [weights_file] if weights_file.is_file() else []


def _read_index(folder: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a folder says; empty without an index."""
    file = folder / _INDEX_FILE
    if not file.is_file():
        return {}
    try:
        index = _parse_index(file)
        shards = set(index.file_by_tensor.values())
        outside = sorted(shard for shard in shards if Path(shard).name != shard)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LaminaError(f"{file} is damaged. Download or save the model again.") from error

    if outside:
        raise LaminaError(
            f"{file} names {outside[0]}, which is not in its folder. Put the file there and name "
            "it so."
        )
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise LaminaError(
            f"{file} names {missing[0]}, which is not there ({len(missing)} of {len(shards)} files "
            "are missing). Download the model again, completely."
        )
    has_weights_file = (folder / _WEIGHTS_FILE).is_file()
    if not index.has_metadata and not has_weights_file:
        raise LaminaError(
            f'{file} has no `metadata`, and transformers asks for it. Write "metadata": {{}} there.'
        )
    if has_weights_file and shards != {_WEIGHTS_FILE}:
        raise LaminaError(
            f"{folder} holds two checkpoints, {_WEIGHTS_FILE} and the files that {_INDEX_FILE} "
            "names. Delete the one that is not meant."
        )
    return index.file_by_tensor


def _parse_index(file: Path) -> _Index:
    content = json.loads(file.read_text(encoding="utf-8"))
    return _Index(content["weight_map"], isinstance(content.get("metadata"), dict))


def read_weights(folder: Path, where: str) -> dict[str, TensorHeader]:
    """The header of each tensor that is loaded, by name; empty if there are none.

    Raises LaminaError as `weight_files` does, or if a file is damaged, a tensor is in two files or
    not in the file that the index says, or a wrapper of training has left its prefix on all names.
    """
    tensors: dict[str, TensorHeader] = {}
    with located_at(where):
        file_by_tensor = _read_index(folder)
        for shard in weight_files(folder):
            header = _read_header(shard)
            _check_unique(tensors, header, shard)
            tensors |= header
            indexed = (name for name, file in file_by_tensor.items() if file == shard.name)
            _check_complete(indexed, header, shard)
    _check_no_wrapper(tensors, folder, where)
    return tensors


def _read_header(shard: Path) -> dict[str, TensorHeader]:
    """The tensors of a safetensors file; a LaminaError if its data is incomplete."""
    tensors: dict[str, TensorHeader] = {}
    try:
        with safe_open(shard, "np") as file:
            for name in file.keys():  # noqa: SIM118, it is no dict
                stored = file.get_slice(name)
                tensors[name] = TensorHeader(stored.get_shape(), stored.get_dtype())
    except (SafetensorError, OSError) as error:
        raise LaminaError(
            f"{shard} is not a complete safetensors file ({error}). Download or save the model "
            "again."
        ) from error
    return tensors


def _check_unique(
    tensors: Mapping[str, TensorHeader], header: Mapping[str, TensorHeader], shard: Path
) -> None:
    repeated = sorted(tensors.keys() & header.keys())
    if repeated:
        raise LaminaError(
            f"{shard} holds {repeated[0]}, which another file holds too. Keep it in one of them."
        )


def _check_complete(
    indexed: Iterable[str], header: Mapping[str, TensorHeader], shard: Path
) -> None:
    missing = sorted(name for name in indexed if name not in header)
    if missing:
        raise LaminaError(
            f"{shard.with_name(_INDEX_FILE)} looks for {missing[0]} in {shard.name}, which has no "
            "such tensor."
        )


def _check_no_wrapper(tensors: Mapping[str, TensorHeader], folder: Path, where: str) -> None:
    for prefix in _WRAPPER_PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            raise LaminaError(
                f"{where}: every tensor in {folder} is named with '{prefix}' before its name, "
                "which a wrapper of training leaves. Save the model inside of the wrapper again, "
                "or rename its tensors."
            )


def check_names(
    tensors: Mapping[str, TensorHeader], folder: Path, settings: Mapping[str, Any], where: str
) -> None:
    """Refuse tensors that are not those of the model in config.json, as far as headers tell.

    Raises LaminaError if weights are quantised though config.json does not say so, an adapter is
    among them, or there are more or fewer layers than config.json says. The rest is compared when
    the model is loaded.
    """
    if quantisation_method(settings) is None:
        _check_not_quantised(tensors, folder, where)
    adapted = sorted(filter(_ADAPTED_TENSOR.search, tensors))
    if adapted:
        raise LaminaError(
            f"{where}: {folder} stores {adapted[0]}, an adapter together with the weights. Merge "
            "the two and save the merged model (PEFT: merge_and_unload, then save_pretrained)."
        )
    _check_stored_layers(tensors, folder, decoder_settings(settings), where)


def _check_not_quantised(tensors: Mapping[str, TensorHeader], folder: Path, where: str) -> None:
    auxiliary = sorted(filter(_QUANTISED_TENSOR.search, tensors))
    packed = sorted(
        name
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.dtype not in _FLOATING_TYPES
    )
    quantised = auxiliary or packed
    if quantised:
        first = quantised[0]
        raise LaminaError(
            f"{where}: {folder} stores {first} ({tensors[first].dtype}): its weights are "
            "quantised, which its config.json does not say. Write the checkpoint that it was made "
            "from."
        )


def _check_stored_layers(
    tensors: Iterable[str], folder: Path, decoder: Mapping[str, Any], where: str
) -> None:
    matches = (_DECODER_LAYER.match(name) for name in tensors)
    stored_layers = {int(match[1]) for match in matches if match}
    depth = stated_depth(decoder)
    if not stored_layers or not depth:
        return
    # Heads that predict several tokens ahead are stored after the layers, and not loaded.
    n_extra = decoder.get("num_nextn_predict_layers")
    most_layers = depth + (n_extra if isinstance(n_extra, int) else 0)
    if not set(range(depth)) <= stored_layers <= set(range(most_layers)):
        raise LaminaError(
            f"{where}: {folder} stores {len(stored_layers)} layers, the last one "
            f"{max(stored_layers)}, and its config.json says {depth} layers: another model would "
            "be measured. Correct `num_hidden_layers`, or save the model again."
        )


def stored_width(dtype: str, config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> int:
    """Bytes of a weight that is loaded as `dtype`.

    For `auto`, the type is that of config.json, or else that of most stored numbers.
    """
    stated = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    n_numbers = Counter[int]()
    for tensor in tensors.values():
        n_numbers[_STORED_WIDTHS.get(tensor.dtype, 0)] += prod(tensor.shape)
    # A width of one byte or less is that of quantised weights or masks.
    most_common = max(n_numbers, key=lambda width: (width > 1, n_numbers[width]), default=4)
    return _LOADED_WIDTHS.get(dtype) or _LOADED_WIDTHS.get(stated) or most_common


def stated_context(settings: Mapping[str, Any]) -> int | None:
    """The context, in tokens, that a config.json states; None if it states none.

    Models with ALiBi need none.
    """
    # Multimodal checkpoints nest the settings of the decoder.
    decoder = settings.get("text_config") or settings
    for key in _CONTEXT_KEYS:
        if decoder.get(key) is not None:
            return decoder[key] if isinstance(decoder[key], int) else None
    return None


def check_fits(where: str, tokens: int, limit: int | None, model: str) -> None:
    """Refuse a number of tokens, given under the key `where`, above the context of a model."""
    if limit is not None and tokens > limit:
        raise LaminaError(
            f"{where}: {tokens} tokens are more than the context of model '{model}', {limit}. "
            f"Write at most {limit}, or leave the model out of the studies that use it."
        )


def check_generation(prompt: int, generate: int, limit: int | None, model: str) -> None:
    """Refuse a measurement of efficiency whose tokens are more than the context of a model."""
    if limit is not None and prompt + generate > limit:
        n_generated = min(generate, limit // 2)
        raise LaminaError(
            f"benchmarks.efficiency: a prompt of {prompt} and {generate} generated tokens are more "
            f"than the context of model '{model}', {limit}. Write `efficiency: {{prompt: "
            f"{limit - n_generated}, generate: {n_generated}}}`."
        )

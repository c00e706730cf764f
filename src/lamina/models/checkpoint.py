"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The checks of a configuration use this module too, so it does not import torch. Faulty tensors are
refused when they are loaded, by `lamina.models.load.check_whole`.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
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

_LOADED_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number
# Types of floating point numbers by their names in safetensors.
_FLOATING_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_CONTEXT_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")  # in the order of lm-eval
_MOST_LAYERS = 10_000
_OTHER_WEIGHTS_SUFFIXES = (".bin", ".pt", ".pth", ".safetensors", ".gguf")
_TOKENIZER_FILE = re.compile(r"token|vocab|merges|spiece|tekken|[.](model|tiktoken|codes)$")
_FILES_WITHOUT_VOCABULARY = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


class TensorHeader(NamedTuple):
    """What the header of a safetensors file says about a tensor."""

    shape: list[int]
    dtype: str  # such as BF16


def read_settings(folder: Path, where: str, source: str) -> dict[str, Any]:
    """The settings in the config.json of a model folder.

    where, source: the key of the configuration that names the folder, and what it says.

    Raises LaminaError if there is no config.json, it is not a JSON object, or it holds impossible
    values.
    """
    with located_at(where):
        check_is_no_adapter(folder)
    file = folder / "config.json"
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json: it is not a Hugging Face model. "
            "Write the folder that holds config.json and *.safetensors (a converted checkpoint, or "
            "a snapshot folder of the hub cache)."
        )
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        is_object = isinstance(settings, dict)
        if not is_object or not isinstance(settings.get("text_config") or {}, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise LaminaError(
            f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file."
        ) from error
    with located_at(where):
        for key in LAYER_KEYS:
            check_depth(file, key, decoder_settings(settings).get(key))
    return settings


def check_is_no_adapter(folder: Path) -> None:
    """Refuse an adapter: transformers would load the weights of the model that it names."""
    if (folder / "adapter_config.json").is_file():
        raise LaminaError(
            f"{folder} holds an adapter (adapter_config.json). Merge it into its base model first "
            "(PEFT: merge_and_unload, then save_pretrained, with the tokenizer) and write the "
            "merged folder, or delete its files."
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
    """Refuse quantised weights that are not dequantised here, and a folder without weights.

    Other faults are refused when the model is loaded.

    Raises LaminaError, which says what the folder holds, and what to write instead.
    """
    method = quantisation_method(settings)
    if method and method not in DEQUANTISED:
        raise LaminaError(
            f"{where}: '{source}' is quantised ({method}), but layers are measured and cut in "
            "floating point. Write the checkpoint that it was made from, or one in a format that "
            f"lamina dequantises: {', '.join(DEQUANTISED)}, or a .gguf file."
        )
    if (folder / _WEIGHTS_FILE).is_file() or (folder / _INDEX_FILE).is_file():
        return
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name.endswith(_OTHER_WEIGHTS_SUFFIXES)]
    content = f", but {', '.join(others[:3])}" if others else ""
    raise LaminaError(
        f"{where}: '{source}' has no {_WEIGHTS_FILE} and no {_INDEX_FILE}{content}. Download the "
        "model again, completely. Pickled weights can run code: if you trust them, load them, save "
        "them with `save_pretrained`, and write that folder. For GGUF, write the path of the file."
    )


def quantisation_method(settings: Mapping[str, Any]) -> str | None:
    """The quantisation method that a config.json states; None if it states none."""
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

    Raises LaminaError. Only the names of files are checked: whether a tokenizer loads and fits
    shows when it is loaded.
    """
    names = {path.name for path in folder.iterdir()}
    has_vocabulary = any(
        _TOKENIZER_FILE.search(name) and name not in _FILES_WITHOUT_VOCABULARY for name in names
    )
    has_code = any(name.endswith(".py") for name in names)
    if not has_vocabulary and not has_code:
        raise LaminaError(
            f"{entry}.source: {folder} has no tokenizer. Put tokenizer.json and "
            "tokenizer_config.json of the model that it was made from next to its weights."
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

    Raises LaminaError if an index is damaged or names a file that is not there.
    """
    weights_file = folder / _WEIGHTS_FILE
    if weights_file.is_file():
        return [weights_file]
    index_file = folder / _INDEX_FILE
    if not index_file.is_file():
        return []
    try:
        index = json.loads(index_file.read_text(encoding="utf-8"))
        shards = sorted({folder / name for name in index["weight_map"].values()})
        if not isinstance(index["metadata"], dict):
            raise ValueError("its `metadata` is no object")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LaminaError(
            f"{index_file} is damaged ({type(error).__name__}: {error}). Download or save the "
            "model again."
        ) from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise LaminaError(
            f"{index_file} names {missing[0]}, which is not there ({len(missing)} of {len(shards)} "
            "files are missing). Download the model again, completely."
        )
    return shards


def read_weights(folder: Path, where: str) -> dict[str, TensorHeader]:
    """The header of each tensor that is loaded, by name; empty if there are none.

    Raises LaminaError as `weight_files` does, or if a file is damaged.
    """
    tensors: dict[str, TensorHeader] = {}
    with located_at(where):
        for shard in weight_files(folder):
            tensors |= _read_header(shard)
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


def check_floating(
    tensors: Mapping[str, TensorHeader], folder: Path, settings: Mapping[str, Any], where: str
) -> None:
    """Refuse quantised weights that config.json does not declare: they would load as plain numbers.

    Raises LaminaError, which names one of them.
    """
    if quantisation_method(settings) is not None:
        return
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dtype not in _FLOATING_TYPES:
            raise LaminaError(
                f"{where}: {folder} stores {name} ({tensor.dtype}): its weights are quantised, "
                "which its config.json does not say. Write the checkpoint that it was made from."
            )


def stored_width(dtype: str, config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> int:
    """Bytes of a weight that is loaded as `dtype`.

    For `auto`, the type is that of config.json, or else that of most stored numbers.
    """
    stated = _stated_dtype(config)
    n_numbers = Counter[int]()
    for tensor in tensors.values():
        bits = re.match(r"[A-Z]+(\d+)", tensor.dtype)
        n_numbers[int(bits[1]) // 8 if bits else 0] += prod(tensor.shape)
    # A width of one byte or less is that of quantised weights or masks.
    most_common = max(n_numbers, key=lambda width: (width > 1, n_numbers[width]), default=4)
    return _LOADED_WIDTHS.get(dtype) or _LOADED_WIDTHS.get(stated) or most_common


def loaded_dtype(dtype: str, config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> str:
    """The dtype in which weights are loaded; for `auto`, the one that it stands for."""
    if dtype != "auto":
        return dtype
    stated = _stated_dtype(config)
    if stated in _LOADED_WIDTHS:
        return stated
    n_numbers = Counter[str]()
    for tensor in tensors.values():
        if tensor.dtype in _FLOATING_TYPES:
            n_numbers[_FLOATING_TYPES[tensor.dtype]] += prod(tensor.shape)
    return max(n_numbers, key=n_numbers.__getitem__, default="float32")


def _stated_dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")


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
    """Refuse a measurement of efficiency with more tokens than the context of a model."""
    if limit is not None and prompt + generate > limit:
        n_generated = min(generate, limit // 2)
        raise LaminaError(
            f"benchmarks.efficiency: a prompt of {prompt} and {generate} generated tokens are more "
            f"than the context of model '{model}', {limit}. Write `efficiency: {{prompt: "
            f"{limit - n_generated}, generate: {n_generated}}}`."
        )

"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The configuration uses this module too, so it does not import torch. A folder may come from anybody: a file that would
hang a job, or make it fail later, is refused here by its name.
"""

import json
import stat
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lamina.errors import LaminaError

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")

_LARGEST = 16 << 20  # bytes of a config.json
_MOST_LAYERS = 10_000


def read_settings(folder: Path, where: str, source: str) -> dict[str, Any]:
    """The settings in the config.json of a model folder. The key `where` of the configuration names it as `source`.

    Raises
    ------
    LaminaError
        If there is no config.json, it is no JSON object, it holds impossible values, or the folder holds a pipe or a
        device.
    """
    for path in folder.iterdir():
        if path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise LaminaError(f"{where}: {path} is no plain file (a pipe, socket or device). Delete it.")
    file = folder / "config.json"
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json, so it is no Hugging Face model. Write the folder that "
            "holds config.json and *.safetensors (a converted checkpoint, or a snapshot folder of the hub cache)."
        )
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
        settings = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not isinstance(settings.get("text_config") or {}, dict):
            raise ValueError("no object")
    except RecursionError:
        raise LaminaError(f"{where}: '{source}/config.json' is nested too deep to be read. Restore the file.") from None
    except ValueError as error:
        raise LaminaError(f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file.") from error
    decoder = decoder_settings(settings)
    for key in LAYER_KEYS:
        if isinstance(decoder.get(key), int) and not 0 < decoder[key] <= _MOST_LAYERS:
            raise LaminaError(
                f"{where}: '{source}/config.json' says `{key}: {decoder[key]}`, which no model has. Restore the file."
            )
    return settings


def decoder_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the decoder, which multimodal checkpoints nest."""
    return {**settings, **(settings.get("text_config") or {})}


def read_weights(folder: Path, where: str) -> dict[Path, dict[str, Any]]:
    """The tensors of each safetensors file of a model, in the order of file names; empty if there are none.

    Raises
    ------
    LaminaError
        If a file that the index names is missing, or a file is damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LaminaError(f"{where}: {index} is damaged. Download or save the model again.") from error
        missing = sorted(shard for shard in named if not (folder / shard).is_file())
        if missing:
            raise LaminaError(
                f"{where}: {index.name} names {missing[0]}, which is not there ({len(missing)} of {len(named)} files "
                "are missing). Download the model again, completely."
            )
    return {shard: _read_header(shard, where) for shard in sorted(folder.glob("*.safetensors"))}


def _read_header(shard: Path, where: str) -> dict[str, Any]:
    """`shape` and `dtype` of each tensor in a safetensors file.

    Raises
    ------
    LaminaError
        If the header is damaged, or does not fit the file's data.
    """
    try:
        with safe_open(shard, "np") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118, it is no dict
            return {key: {"shape": each.get_shape(), "dtype": each.get_dtype()} for key, each in slices.items()}
    except (SafetensorError, OSError) as error:
        raise LaminaError(
            f"{where}: {shard} is not a complete safetensors file ({error}). Download or save the model again."
        ) from error

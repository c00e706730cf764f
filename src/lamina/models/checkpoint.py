"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The configuration uses this module too, so it does not import torch. A folder may come from anybody: a file that would
hang a job, or make it fail later, is refused here by its name.
"""

import json
import stat
import struct
from math import prod
from pathlib import Path
from typing import Any

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
    """Shape, dtype and place of the tensors in a safetensors file.

    A file holds 8 bytes of length (little-endian), a header in JSON, then the tensors without gaps. `data_offsets`
    count from the end of the header.

    Raises
    ------
    LaminaError
        If the header is damaged, or the data does not have the length that the header says.
    """
    size = shard.stat().st_size
    with shard.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError
            header = json.loads(file.read(length))
            tensors = {key: value for key, value in header.items() if key != "__metadata__"}
            places = sorted((*tensor["data_offsets"], key) for key, tensor in tensors.items())
            needed = {key: prod(tensor["shape"]) * BYTES.get(tensor["dtype"], 0) for key, tensor in tensors.items()}
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LaminaError(
                f"{where}: {shard} is not a complete safetensors file. Download or save the model again."
            ) from error
    end = 0
    for start, stop, key in places:
        if start != end or stop < start or needed[key] not in (0, stop - start):
            raise LaminaError(
                f"{where}: {shard} is damaged: its header puts tensor '{key}' at bytes {start} to {stop}, where it "
                "does not fit. Download or save the model again."
            )
        end = stop
    whole = 8 + length + end
    if whole != size:
        raise LaminaError(
            f"{where}: {shard} is {'cut off' if size < whole else 'damaged'}: it has {size} bytes and its header says "
            f"{whole}. Download or save the model again."
        )
    return tensors

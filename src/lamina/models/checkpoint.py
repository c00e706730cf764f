"""What a model folder holds, read from its config.json and the headers of its safetensors files.

The configuration uses this module too, so it does not import torch. A folder may come from anybody: a file that would
hang a job, or make it fail later, is refused here by its name.
"""

import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lamina.errors import LaminaError, at_end

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")

_CONTEXT_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")  # in the order of lm-eval
_LARGEST = 16 << 20  # bytes of a config.json
_MOST_LAYERS = 10_000
_SETTINGS = {".json", ".model", ".py", ".jinja", ".txt"}


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


def context(settings: Mapping[str, Any]) -> int | None:
    """The context, in tokens, that the settings in a config.json state; None if they state none (ALiBi needs none)."""
    text = settings.get("text_config") or settings  # multimodal checkpoints nest the decoder's settings
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


def facts(folder: Path) -> dict[str, Any]:
    """SHA-256 of the weights in a model's folder and of its configuration, tokenizer and code; sizes and times."""
    before, (weights, others) = _stamps(folder), files(folder)
    hashes = {"weights_sha256": _sha256(weights), "settings_sha256": _sha256(others)}
    if _stamps(folder) != before:
        raise LaminaError(f"the files in {folder} changed while they were read. Start again once they are complete.")
    return hashes | {"files": before}


def check(manifest: Mapping[str, Any]) -> None:
    """Refuse a model, by a LaminaError, whose files are not those of its manifest, now and when the work is done."""
    folder, of = Path(manifest["path"]), f"the model '{manifest['source']}'"
    if not folder.is_dir():
        raise LaminaError(f"{of} is not in {folder.absolute()} any more. Put it back, or correct its `source`.")

    def same(what: str, before: Any, now: Any) -> None:
        if before != now:
            raise LaminaError(
                f"the {what} of {of} in {folder} are not what they were when it was prepared. Put them back, or delete "
                "its manifest.json under results/models and run again, which measures all of it anew."
            )

    if (stamps := _stamps(folder)) != manifest.get("files"):
        found = facts(folder)
        for key, what in (("weights_sha256", "weights"), ("settings_sha256", "configuration or tokenizer")):
            same(what, manifest.get(key, found[key]), found[key])
    at_end(lambda: same("files", stamps, _stamps(folder)))


def files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The weights in a model's folder, and its configuration, tokenizer and code."""
    others = sorted(path for path in folder.iterdir() if path.suffix in _SETTINGS and path.is_file())
    return sorted(folder.glob("*.safetensors")), others


def _stamps(folder: Path) -> dict[str, list[int]]:
    stats = {path.name: path.stat() for paths in files(folder) for path in paths}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()

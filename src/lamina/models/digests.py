"""Hashes the files of a model folder, to detect a changed model."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lamina.errors import LaminaError
from lamina.models import checkpoint, gguf

_SETTINGS_SUFFIXES = {".json", ".model", ".tiktoken", ".py", ".jinja"}
# The text files of tokenizers. Others are licences and notes.
_VOCABULARIES = {"vocab.txt", "merges.txt", "dict.txt"}
_PIECE_BYTES = 1 << 16

Stamps = dict[str, list[int]]
"""By file name, the size in bytes and the time of the last change in nanoseconds."""


class ModelFiles(NamedTuple):
    """The files of a model folder that are read."""

    weights: list[Path]
    settings: list[Path]
    """Its configuration, tokenizer and code."""


def list_files(folder: Path) -> ModelFiles:
    """The files of a model folder that are read."""
    settings = [path for path in folder.iterdir() if _holds_settings(path) and path.is_file()]
    return ModelFiles(checkpoint.weight_files(folder), sorted(settings))


def _holds_settings(path: Path) -> bool:
    """Whether a file belongs to the configuration, tokenizer or code of a model, by its name."""
    return path.suffix in _SETTINGS_SUFFIXES or path.name in _VOCABULARIES


def describe_files(folder: Path) -> dict[str, Any]:
    """SHA-256 of a folder's weights and of its other files, and their sizes and times.

    Returns dict: weights_sha256, settings_sha256, files.

    Raises LaminaError if a file changes while it is read.
    """
    stamps = _read_stamps(folder)
    files = list_files(folder)
    weights_sha256 = _hash_files(files.weights)
    settings_sha256 = _hash_files(files.settings)
    if _read_stamps(folder) != stamps:
        raise LaminaError(
            f"the files in {folder} changed while they were read. Start again once they are "
            "complete."
        )
    return {
        "weights_sha256": weights_sha256,
        "settings_sha256": settings_sha256,
        "files": stamps,
    }


def check_files(manifest: Mapping[str, Any]) -> None:
    """Refuse a model whose files do not match its manifest.

    Raises LaminaError if files changed or the folder is missing.
    """
    folder = Path(manifest["path"])
    model = f"the model '{manifest['source']}'"
    if not folder.is_dir():
        raise LaminaError(
            f"{model} is not in {folder.absolute()} any more. Put it back, or correct its `source`."
        )
    stamps = _read_stamps(folder)
    if stamps != manifest.get("files"):
        # The files may have been copied or touched, and still be the same.
        facts = describe_files(folder)
        if manifest.get("weights_sha256", facts["weights_sha256"]) != facts["weights_sha256"]:
            raise _changed("weights", model, folder)
        if manifest.get("settings_sha256", facts["settings_sha256"]) != facts["settings_sha256"]:
            raise _changed("configuration or tokenizer", model, folder)


def _changed(what: str, model: str, folder: Path) -> LaminaError:
    return LaminaError(
        f"the {what} of {model} in {folder} changed after it was prepared. Restore the old files, "
        "or delete its manifest.json under results/models and run again, which repeats all its "
        "measurements."
    )


def _read_stamps(folder: Path) -> Stamps:
    files = list_files(folder)
    stamps: Stamps = {}
    for path in (*files.weights, *files.settings):
        stat = path.stat()
        stamps[path.name] = [stat.st_size, stat.st_mtime_ns]
    return stamps


def _hash_files(paths: Iterable[Path]) -> str:
    """SHA-256 of the contents of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def fingerprint_model(folder: Path) -> str | None:
    """A hash that changes when a local model changes, but not when it is only touched.

    It is None if there is no folder, and cheap enough for every start of the workflow. Small files
    are read whole. Of large files it takes the size and both ends, where a safetensors file keeps
    its header and its last tensors.
    """
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        is_read = path.suffix == ".safetensors" or _holds_settings(path)
        if not is_read or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            if size > 1 << 25:
                digest.update(file.read(1 << 21))
                file.seek(-(1 << 21), 2)
            digest.update(file.read())
    return digest.hexdigest()


def checkpoint_name(source: str | Path, dtype: str) -> str:
    """The name of the checkpoint that a GGUF file or a quantised folder is dequantised to.

    It consists of a hash of the content and the dtype. So renaming a model or its files does not
    cause another dequantisation.
    """
    path = Path(source)
    if path.is_dir():
        return f"{str(fingerprint_model(path))[:16]}-{dtype}"
    digest = hashlib.sha256()
    tokenizer_files = [path.with_name("tokenizer.json"), path.with_name("tokenizer_config.json")]
    for file in (*gguf.shard_files(path), *filter(Path.is_file, tokenizer_files)):
        for piece in _sample_pieces(file):
            digest.update(piece)
    return f"{digest.hexdigest()[:16]}-{dtype}"


def _sample_pieces(path: Path) -> Iterator[bytes]:
    """The size of a file, and 64 pieces that are spread over all of it.

    Two fine-tunes of one model have the same size, and differ everywhere else.
    """
    size = path.stat().st_size
    yield f"{size}:".encode()
    with path.open("rb") as file:
        for position in range(0, size, max(size // 64, _PIECE_BYTES)):
            file.seek(position)
            yield file.read(_PIECE_BYTES)
        file.seek(max(size - _PIECE_BYTES, 0))
        yield file.read()

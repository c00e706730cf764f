"""Checks that a model's files are those that were prepared, as a job loads them and when its work is done.

A manifest has the SHA-256 of the files, and the size and time of each. A job hashes them again only where a size or a
time differs, as in a copy of a project.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at_end

_SETTINGS = {".json", ".model", ".py", ".jinja", ".txt"}


def facts(folder: Path) -> dict[str, Any]:
    """SHA-256 of the weights in a model's folder and of its configuration, tokenizer and code; sizes and times."""
    before = _stamps(folder)
    hashes = _digests(folder)
    if _stamps(folder) != before:
        raise LaminaError(f"the files in {folder} changed while they were read. Start again once they are complete.")
    return hashes | {"files": before}


def check(manifest: Mapping[str, Any]) -> None:
    """Refuse a model whose files are not those of its manifest, now and when the job's work is done.

    Raises
    ------
    LaminaError
        The message names the folder, and what to do.
    """
    folder = Path(manifest["path"])
    if not folder.is_dir():
        raise LaminaError(
            f"the model '{manifest['source']}' is not in {folder.absolute()} any more. Put it back, or correct "
            "`source` in the configuration."
        )
    stamps = _stamps(folder)
    if stamps != manifest.get("files"):
        hashes = _digests(folder)
        for key, of in (("weights_sha256", "weights"), ("settings_sha256", "configuration or tokenizer")):
            if key in manifest and manifest[key] != hashes[key]:
                raise _another(manifest, of)
    at_end(lambda: _same(manifest, stamps))


def _same(manifest: Mapping[str, Any], stamps: Mapping[str, Any]) -> None:
    if _stamps(Path(manifest["path"])) != stamps:
        raise _another(manifest, "files")


def _another(manifest: Mapping[str, Any], of: str) -> LaminaError:
    return LaminaError(
        f"the {of} of the model '{manifest['source']}' in {manifest['path']} are not what they were when it was "
        "prepared: what is measured now would be of another model. Put them back, or delete its manifest.json "
        "under results/models and run again, which measures all of it anew."
    )


def files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The weights in a model's folder, and its configuration, tokenizer and code."""
    others = [path for path in folder.iterdir() if path.suffix in _SETTINGS and path.is_file()]
    return sorted(folder.glob("*.safetensors")), sorted(others)


def _digests(folder: Path) -> dict[str, str]:
    weights, others = files(folder)
    return {"weights_sha256": _sha256(weights), "settings_sha256": _sha256(others)}


def _stamps(folder: Path) -> dict[str, list[int]]:
    stats = {path.name: path.stat() for paths in files(folder) for path in paths}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()

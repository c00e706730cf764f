"""A model's files are those of its manifest, or it is refused. They are hashed only where a size or time differs."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at_end

_SETTINGS = {".json", ".model", ".py", ".jinja", ".txt"}


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

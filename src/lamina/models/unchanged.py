"""Checks that a model's files are those that were prepared, at the beginning and the end of each job that reads them.

Files whose sizes and times are unchanged since they were hashed are not hashed again. After any change they are hashed
once more, and the hashes are kept beside the run for all its jobs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at_end
from lamina.models import remembered

_SETTINGS = {".json", ".model", ".py", ".jinja", ".txt"}
_CHUNK = 1 << 22

_seen: dict[str, tuple[str, str]] = {}  # digests by the stamp of the files


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights in a model's folder, and of its configuration, tokenizer and code."""
    stamp = _stamp(folder)
    if stamp not in _seen:
        _seen[stamp] = _kept(folder, stamp) or _keep(
            folder, stamp, (_sha256(_weights(folder)), _sha256(_others(folder)))
        )
    return dict(zip(("weights_sha256", "settings_sha256"), _seen[stamp], strict=True))


def check(manifest: Mapping[str, Any], again: bool = True) -> None:
    """Refuse a model whose files are not those of its manifest, now and, with `again`, when the job's work is done.

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
    hashes = digests(folder)
    for key, of in (("weights_sha256", "weights"), ("settings_sha256", "configuration or tokenizer")):
        if key in manifest and manifest[key] != hashes[key]:
            raise LaminaError(
                f"the {of} of the model '{manifest['source']}' in {folder} are not what they were when it was "
                "prepared: what is measured now would be of another model. Put them back, or delete its manifest.json "
                "under results/models and run again, which measures all of it anew."
            )
    if again:
        at_end(lambda: check(manifest, again=False))


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _others(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _SETTINGS and path.is_file())


def _stamp(folder: Path) -> str:
    """Which files there are, their sizes and times; the time of a change cannot be set back."""
    files = [(path.name, path.stat()) for path in (*_weights(folder), *_others(folder))]
    facts = [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in files]
    return json.dumps([str(folder.resolve()), facts])


def _kept(folder: Path, stamp: str) -> tuple[str, str] | None:
    match remembered.recall(str(folder.resolve()), stamp):
        case [str(weights), str(others)]:
            return weights, others
    return None


def _keep(folder: Path, stamp: str, hashes: tuple[str, str]) -> tuple[str, str]:
    if _stamp(folder) == stamp:  # not while they are being written
        remembered.keep(str(folder.resolve()), stamp, hashes)
    return hashes


def _sha256(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()

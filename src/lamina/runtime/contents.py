"""Hashes of data files that lamina did not make: a measurement depends on the content of a file, not on its time.

The driver hashes them at each start and tells the hashes to the jobs that read them, so that another content makes
these jobs stale. A job refuses a file whose hash is not the one it was told, and a file that changes while it is read.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from lamina.errors import LaminaError, at_end

LARGE = 1 << 24  # bytes; the hash of a larger file is kept beside the run, since reading it takes longer
_KNOWN = Path(".snakemake/lamina-data")
_TICK = 10**9  # ns; a file that changed a moment ago may change again without another time of the clock

_seen: dict[str, str] = {}  # by the stamp of a file


def digests(files: Iterable[str]) -> dict[str, str]:
    """The first half of the SHA-256 of each file that exists, by its name."""
    return {name: _digest(Path(name)) for name in files if Path(name).is_file()}


def check(told: Mapping[str, str]) -> None:
    """Refuse files that are not those that a job was told of, now and when its work is done.

    Raises
    ------
    LaminaError
        If a file is another one. The message names the file and what to do.
    """
    before = {name: _stamp(Path(name)) for name in told if Path(name).is_file()}
    for name, digest in told.items():
        if name not in before or _sha256(Path(name)) != digest:
            raise LaminaError(f"{name} is not what it was when the run began: it was changed meanwhile. {_AGAIN}")
    at_end(lambda: _same(before))


_AGAIN = "Start again: what was made from it is made anew."


def _same(before: Mapping[str, str]) -> None:
    for name, stamp in before.items():
        if not Path(name).is_file() or _stamp(Path(name)) != stamp:
            raise LaminaError(f"{name} was changed while it was being read. {_AGAIN}")


def _stamp(path: Path) -> str:
    """Which file it is, its size and its times; the time of a change cannot be set back."""
    stat = path.stat()
    return json.dumps([str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


def _digest(path: Path) -> str:
    stamp = _stamp(path)
    if stamp in _seen:
        return _seen[stamp]
    kept = _KNOWN / hashlib.sha256(stamp.encode()).hexdigest()[:32]
    large = path.stat().st_size > LARGE
    if large and kept.is_file():
        return kept.read_text(encoding="utf-8")
    digest = _sha256(path)
    if time.time_ns() - path.stat().st_ctime_ns > _TICK and _stamp(path) == stamp:
        _seen[stamp] = digest
        if large and _KNOWN.parent.is_dir():
            _KNOWN.mkdir(exist_ok=True)
            whole = kept.with_name(f"{kept.name}.{os.getpid()}")
            whole.write_text(digest, encoding="utf-8")
            whole.replace(kept)
    return digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]

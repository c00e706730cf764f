"""Hashes of the user's data files. They are params (`content`) of the rules that read them: another content makes a
job stale, another time does not. A job refuses a file whose hash is another one, before and after it has read it."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from lamina.errors import LaminaError, at_end


def digests(files: Iterable[str]) -> dict[str, str]:
    """The first half of the SHA-256 of each file that exists, by its name."""
    return {name: _digest(str(Path(name).resolve()), _stamp(name)) for name in files if Path(name).is_file()}


def check(expected: Mapping[str, str]) -> None:
    """Refuse files that have other hashes than these by their names, now and when the job's work is done."""
    for name, digest in expected.items():
        if digests([name]).get(name) != digest:
            raise _changed(name, "is not what it was when the run began: it was changed meanwhile")
    before = {name: _stamp(name) for name in expected}

    def after() -> None:
        for name, stamp in before.items():
            if not Path(name).is_file() or _stamp(name) != stamp:
                raise _changed(name, "was changed while it was being read")

    at_end(after)


def _changed(name: str, reason: str) -> LaminaError:
    return LaminaError(f"{name} {reason}. Start again: what was made from it is made anew.")


def _stamp(name: str) -> tuple[int, ...]:
    stat = Path(name).stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns  # the last one cannot be set back


@lru_cache(maxsize=4096)
def _digest(path: str, stamp: tuple[int, ...]) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]

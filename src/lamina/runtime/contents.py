"""Hashes of the user's data files, which are params (`content`) of the rules that read them.

Another content makes a job stale, another time does not. A job refuses a file whose hash is not the one that its rule
was given, before its work and after it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from lamina.errors import LaminaError

Stamp = tuple[int, int, int, int]


def hash_files(files: Iterable[str]) -> dict[str, str]:
    """The first half of the SHA-256 of each file that exists, by its name."""
    existing = [name for name in files if Path(name).is_file()]
    return {name: _hash_file(str(Path(name).resolve()), _stamp(name)) for name in existing}


@contextmanager
def unchanged(expected: Mapping[str, str]) -> Iterator[None]:
    """The work of a job that reads files with these hashes by their names.

    Raises LaminaError if a file has another hash before or after the work.
    """
    _check(expected, "is not what it was when the run began: it was changed meanwhile")
    try:
        yield
    finally:
        # What went wrong in between may come of the change, so the change is what is reported.
        _check(expected, "was changed while it was being read")


def _check(expected: Mapping[str, str], reason: str) -> None:
    found = hash_files(expected)
    for name, digest in expected.items():
        if found.get(name) != digest:
            raise LaminaError(
                f"{name} {reason}. Start again: what was made from it will be made anew."
            )


def _stamp(name: str) -> Stamp:
    """What changes if a file does; the time of its last change cannot be set back."""
    stat = Path(name).stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@lru_cache(maxsize=4096)
def _hash_file(path: str, stamp: Stamp) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]

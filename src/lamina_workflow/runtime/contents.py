"""Hashes of the user's data files, which are params (`content`) of the rules that read them.

Changed content makes a job stale; a changed modification time does not. A job refuses a file whose
hash differs from the one that its rule recorded.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lamina.errors import LaminaError

_N_HASH_DIGITS = 32  # the first half of a SHA-256


class _Stamp(NamedTuple):
    """Changes whenever the file does; the time of its last change (`ctime`) cannot be set back."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def hash_files(files: Iterable[str]) -> dict[str, str]:
    """The first half of the SHA-256 of each file that exists, by its name."""
    hashes = {}
    for name in files:
        path = Path(name)
        if path.is_file():
            hashes[name] = _hash_file(str(path.resolve()), _stamp_of(path))
    return hashes


def check_contents(expected: Mapping[str, str]) -> None:
    """Refuse to run a job if one of its files differs from the hash `expected` under its name.

    Raises LaminaError; its message names the file.
    """
    current = hash_files(expected)
    for name, expected_hash in expected.items():
        if current.get(name) != expected_hash:
            raise LaminaError(
                f"{name} changed after the run began. Start again: what was made from it will be "
                "remade."
            )


def _stamp_of(path: Path) -> _Stamp:
    stat = path.stat()
    return _Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=4096)
def _hash_file(path: str, stamp: _Stamp) -> str:
    """The hash of a file, computed once per `stamp`."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_N_HASH_DIGITS]

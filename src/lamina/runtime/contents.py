"""Hashes of the user's data files, which are params (`content`) of the rules that read them.

Another content makes a job stale, another time does not. A job refuses a file whose hash is another one, whenever it
opens it and at the end.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, at_end

_read: dict[
    str, tuple[int, ...]
] = {}  # stamps of the files that the job of this process was given, by their names


def digests(files: Iterable[str]) -> dict[str, str]:
    """The first half of the SHA-256 of each file that exists, by its name."""
    return {
        name: _digest(str(Path(name).resolve()), _stamp(name))
        for name in files
        if Path(name).is_file()
    }


def check(expected: Mapping[str, str]) -> None:
    """Refuse files that have other hashes than these by their names: now, whenever this process opens one, at its end.

    A file that is another one by the time that it is opened has another inode, size or time than the one that was
    hashed. That holds too if it, a link or a folder above it is put back later. Python sees what Python opens: not what
    a library opens that is written in another language.
    """
    _read.clear()
    for name, digest in expected.items():
        _read[str(Path(name).absolute())] = _stamp(name) if Path(name).is_file() else ()
        if digests([name]).get(name) != digest:
            raise _changed(name, "is not what it was when the run began: it was changed meanwhile")
    if expected:
        _watch()
        at_end(lambda: _same(_read))


@cache
def _watch() -> None:
    """Look at the files whenever this process opens one with such a name, by whatever path."""

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and _read:
            name = Path(arguments[0]).name
            _same([file for file in _read if Path(file).name == name])

    sys.addaudithook(opened)


def _same(files: Iterable[str]) -> None:
    for name in files:
        if not Path(name).is_file() or _stamp(name) != _read[name]:
            # Where a library makes another error of this one, the end of the job finds the file changed all the same.
            _read[name] = ()
            raise _changed(os.path.relpath(name), "was changed while it was being read")


def _changed(name: str, reason: str) -> LaminaError:
    return LaminaError(f"{name} {reason}. Start again: what was made from it is made anew.")


def _stamp(name: str) -> tuple[int, ...]:
    stat = Path(name).stat()
    return (
        stat.st_ino,
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ctime_ns,
    )  # the last one cannot be set back


@lru_cache(maxsize=4096)
def _digest(path: str, stamp: tuple[int, ...]) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]

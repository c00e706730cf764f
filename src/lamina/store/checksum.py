"""The checksum and the origin that stand inside each file of lamina.

JSON and safetensors hold `lamina.sha256`: the hash of the whole file with zeros in the place of its digits. Parquet has
checksums of its pages, see `lamina.store.parquet`. `lamina.job` says which job wrote the file, for `make explain`.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, BinaryIO

from lamina.errors import LaminaError

KEY, JOB = "lamina.sha256", "lamina.job"
PARQUET = b"PAR1"
_BLANK = 64 * "0"
_MARK = re.compile(re.escape(KEY.encode()) + rb".{2,6}?([0-9a-f]{64})", re.DOTALL)
_HEAD = 1 << 12  # bytes at the beginning of a file, where the digits are

_now: dict[str, str] = {}  # what stands in every file that this process writes


def tell(text: str) -> None:
    """From now on, this process writes into its files which job it is."""
    _now[JOB] = text.strip()


def origin() -> dict[str, str]:
    """What this process writes into its files."""
    return dict(_now)


def blank() -> dict[str, str]:
    """The names and values that a JSON or safetensors file must begin with, for `put`."""
    return {KEY: _BLANK, **_now}


def put(path: str | Path) -> None:
    """Write the checksum of a file into its blank; a ValueError if it has none."""
    with Path(path).open("r+b") as file:
        at, _, digest = _sums(file)
        if at is None:
            raise ValueError(f"{path} has no blank for a checksum")
        file.seek(at)
        file.write(digest.encode())


def check(path: str | Path) -> None:
    """Refuse a JSON or safetensors file that is not what was written, by a LaminaError with its name and the remedy.

    A file without a checksum passes.
    """
    with Path(path).open("rb") as file:
        at, written, digest = (None, "", "") if file.read(len(PARQUET)) == PARQUET else _sums(file)
        if at is not None and written != digest:
            raise damaged(path, "what it holds is not what was written")


def read_json(path: str | Path) -> dict[str, Any]:
    """Keys and values of a JSON file that lamina wrote; a LaminaError if it is damaged."""
    check(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no keys and values")
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    return {name: value for name, value in values.items() if name not in (KEY, JOB)}


def damaged(path: str | Path, reason: str) -> LaminaError:
    """The error of a file that cannot be read."""
    return LaminaError(f"{path} is damaged: {reason.rstrip('.')}. Delete it and run again: it is made anew.")


def _sums(file: BinaryIO) -> tuple[int | None, str, str]:
    """Where the digits of a file's checksum stand (None if nowhere), which they are, and which they should be."""
    file.seek(0)
    if (match := _MARK.search(file.read(_HEAD))) is None:
        return None, "", ""
    file.seek(0)
    digest = hashlib.sha256(file.read(match.start(1)) + _BLANK.encode())
    file.seek(match.end(1))
    while chunk := file.read(1 << 22):
        digest.update(chunk)
    return match.start(1), match[1].decode(), digest.hexdigest()

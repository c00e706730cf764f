"""Checksums and the origin of the files of lamina, inside each file.

JSON and safetensors hold `lamina.sha256`: the hash of the whole file with zeros in the place of its digits, since the
formats themselves would read a flipped bit as another number. Parquet has checksums of its pages, see
`lamina.store.parquet`. `lamina.job` is what the job was told that wrote the file: `make explain FILE=…` prints it.
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
    """From now on, this process writes what its job was told into its files."""
    _now[JOB] = text.strip()


def origin() -> dict[str, str]:
    """What this process writes into its files: what its job was told."""
    return dict(_now)


def blank() -> dict[str, str]:
    """The names and values that a JSON or safetensors file must begin with, for `put`."""
    return {KEY: _BLANK, **_now}


def put(path: str | Path) -> None:
    """Write the checksum of a file into its blank.

    Raises
    ------
    ValueError
        If the file has no blank.
    """
    with Path(path).open("r+b") as file:
        at = _place(file)
        if at is None:
            raise ValueError(f"{path} has no blank for a checksum")
        digest = _digest(file, at)
        file.seek(at)
        file.write(digest.encode())


def check(path: str | Path) -> None:
    """Refuse a JSON or safetensors file that is not what was written. One without a checksum passes.

    Raises
    ------
    LaminaError
        If the file is damaged. The message names the file and what to do.
    """
    with Path(path).open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET or (at := _place(file)) is None:
            return
        file.seek(at)
        if file.read(len(_BLANK)).decode() != _digest(file, at):
            raise damaged(path, "what it holds is not what was written")


def read_json(path: str | Path) -> dict[str, Any]:
    """Keys and values of a JSON file that lamina wrote.

    Raises
    ------
    LaminaError
        If it is damaged.
    """
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


def _place(file: BinaryIO) -> int | None:
    """The position of the checksum's digits; None if the file holds none."""
    file.seek(0)
    match = _MARK.search(file.read(_HEAD))
    return None if match is None else match.start(1)


def _digest(file: BinaryIO, at: int) -> str:
    """SHA-256 of a file with zeros in the place of the digits."""
    file.seek(0)
    digest = hashlib.sha256(file.read(at) + _BLANK.encode())
    file.seek(at + len(_BLANK))
    while chunk := file.read(1 << 22):
        digest.update(chunk)
    return digest.hexdigest()

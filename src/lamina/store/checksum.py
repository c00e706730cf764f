"""The digest inside each file of lamina, by which a reader checks that the file is as it was written.

Parquet and safetensors have a place for it in their metadata, JSON has a key: `lamina.sha256` and 64 hexadecimal
digits, the hash of the whole file with zeros in their place. The formats themselves check less: they would read a
flipped bit in weights, in a plan or in the footer of a table as another number.

Beside it stands `lamina.told`, the hash of what the writing job was told. It shows whether a job would write the same
file now, also if Snakemake's own records are gone.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, BinaryIO

from lamina.errors import LaminaError

KEY = "lamina.sha256"
BLANK = 64 * "0"
TOLD = "lamina.told"

_MARK, _TOLD = (re.compile(re.escape(name.encode()) + rb".{2,6}?([0-9a-f]{64})", re.DOTALL) for name in (KEY, TOLD))
_HEAD = 1 << 16  # where JSON and safetensors have it; Parquet has it in its footer
_CHUNK = 1 << 22

_now: dict[str, str] = {}  # what stands in every file that this process writes


def tell(text: str) -> None:
    """From now on, this process writes the hash of what its job was told into its files."""
    _now[TOLD] = hashed(text)


def hashed(text: str) -> str:
    """The hash of a text; `told` returns it for a file whose job was told this text."""
    return hashlib.sha256(text.strip().encode()).hexdigest()


def blank() -> dict[str, str]:
    """The names and values that a file must hold for `put` and `told`."""
    return {KEY: BLANK, **_now}


def told(path: str | Path) -> str | None:
    """The hash of what the job that wrote a file was told; None if the file holds none."""
    with Path(path).open("rb") as file:
        digits = _digits(_TOLD, file)
    return None if digits is None else digits[1]


def put(path: str | Path) -> None:
    """Write the digest of a file into its blank.

    Raises
    ------
    ValueError
        If the file has no blank.
    """
    with Path(path).open("r+b") as file:
        at = _place(file)
        if at is None:
            raise ValueError(f"{path} has no blank for a digest")
        digest = _digest(file, at)
        file.seek(at)
        file.write(digest.encode())


def check(path: str | Path) -> None:
    """Refuse a file that is not what was written. One without a digest, as earlier versions wrote them, passes.

    Raises
    ------
    LaminaError
        If the file is damaged. The message names the file and what to do.
    """
    with Path(path).open("rb") as file:
        at = _place(file)
        if at is None:
            return
        file.seek(at)
        if file.read(64).decode() != _digest(file, at):
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
    return {name: value for name, value in values.items() if name not in (KEY, TOLD)}


def damaged(path: str | Path, reason: str) -> LaminaError:
    """The error of a file that cannot be read."""
    return LaminaError(f"{path} is damaged: {reason.rstrip('.')}. Delete it and run again: it is made anew.")


def _place(file: BinaryIO) -> int | None:
    """The position of the digest's digits; None if the file holds none."""
    digits = _digits(_MARK, file)
    return None if digits is None else digits[0]


def _digits(mark: re.Pattern[bytes], file: BinaryIO) -> tuple[int, str] | None:
    """The position of the 64 digits behind a name, and the digits; None if there are none."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    footer, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    begin, length = (size - 8 - footer, footer) if magic == b"PAR1" and footer <= size - 8 else (0, _HEAD)
    file.seek(begin)
    match = mark.search(file.read(length))
    return None if match is None else (begin + match.start(1), match[1].decode())


def _digest(file: BinaryIO, at: int) -> str:
    """SHA-256 of a file with zeros in the place of the digits."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(at))
    digest.update(BLANK.encode())
    file.seek(at + len(BLANK))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()

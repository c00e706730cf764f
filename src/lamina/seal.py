"""The digest that a file of lamina's carries inside, so that a reader knows that it reads what was written.

Parquet (its metadata), safetensors (its metadata) and JSON (a key) all have a place for a text: `lamina.sha256` and 64
hexadecimal digits, those of the whole file with zeros in their place. What the formats check themselves is less: a
flipped bit in weights, in a plan or in the footer of a table would be read as another number.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, BinaryIO

from lamina.errors import LaminaError

KEY = "lamina.sha256"
BLANK = 64 * "0"

_MARK = re.compile(rb"lamina\.sha256.{2,6}?([0-9a-f]{64})", re.DOTALL)
_HEAD = 1 << 16  # where JSON and safetensors have it; Parquet has it in its footer
_CHUNK = 1 << 22


def put(path: str | Path) -> None:
    """Write the digest of a file into its blank.

    Raises
    ------
    ValueError
        If it has none.
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
        Naming the file and what to do.
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
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no keys and values")
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    found.pop(KEY, None)
    return found


def damaged(path: str | Path, reason: str) -> LaminaError:
    """What to say of a file that cannot be read."""
    return LaminaError(f"{path} is damaged: {reason}. Delete it and run again: it is made anew.")


def _place(file: BinaryIO) -> int | None:
    """Where the digits stand."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    footer, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    begin, length = (size - 8 - footer, footer) if magic == b"PAR1" and footer <= size - 8 else (0, _HEAD)
    file.seek(begin)
    found = _MARK.search(file.read(length))
    return None if found is None else begin + found.start(1)


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

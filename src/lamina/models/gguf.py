"""What a GGUF file says of its model, read from its first bytes. Light enough for the Snakefile: no torch, no numpy.

A file holds its magic number, version and counts, then settings as key, type and value, then the tensors
[GGUF, versions 2 and 3, little-endian]. Values of long lists, such as a vocabulary, are skipped.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lamina.errors import LaminaError

SUFFIX = ".gguf"
# struct's letter for each type of a value; text and lists have none.
_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


def is_gguf(source: str | Path) -> bool:
    """Whether a model's source is a GGUF file, by its name."""
    return str(source).endswith(SUFFIX)


def settings(path: Path, where: str) -> Iterator[tuple[str, Any]]:
    """Keys and values in the order of the file; for a list, its length. `where` is the entry that messages name.

    Raises
    ------
    LaminaError
        If it is no GGUF file, is cut off, or has another version.
    """
    with path.open("rb") as file:
        try:
            magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError
            for _ in range(count):
                key = _text(file)
                yield key, _value(file, *_numbers(file, "I"))
        except (struct.error, ValueError, KeyError) as error:
            raise LaminaError(
                f"{where}: {path} is not a complete GGUF file of version 2 or 3 (little-endian). Download or convert "
                "it again."
            ) from error


def shape(path: Path, where: str) -> tuple[int, int | None]:
    """Decoder layers, and the longest context in tokens (None if the file does not say).

    Raises
    ------
    LaminaError
        As `settings`, or if the file does not say how many layers there are.
    """
    values: dict[str, Any] = {}
    for key, value in settings(path, where):
        values[key] = value
        family = values.get("general.architecture")
        if {f"{family}.block_count", f"{family}.context_length"} <= values.keys():
            break
    if not isinstance(layers := values.get(f"{family}.block_count"), int):
        raise LaminaError(f"{where}: {path} does not say how many layers its model has ({family}.block_count).")
    return layers, values.get(f"{family}.context_length")


def _numbers(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _text(file: BinaryIO) -> str:
    (length,) = _numbers(file, "Q")
    text = file.read(length)
    if len(text) < length:
        raise ValueError
    return text.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return _numbers(file, _PLAIN[kind])[0]
    inner, length = _numbers(file, "IQ")
    if inner in _PLAIN:
        file.seek(struct.calcsize(f"<{_PLAIN[inner]}") * length, 1)
    else:
        for _ in range(length):
            _value(file, inner)
    return length

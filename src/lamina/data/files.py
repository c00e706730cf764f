"""Local data files: UTF-8 text, and lines of JSON. The configuration reads them too, so there is no torch here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError


def read_text(path: Path, where: str, form: str) -> str:
    """The text of a file without a byte order mark, lines ending in \\n; `where` is the key that names it.

    Raises
    ------
    LaminaError
        If there is no such file, or it is not UTF-8. `form` describes the file in the message.
    """
    if not path.is_file():
        raise LaminaError(f"{where}: there is no file {path}. Write the path of {form}.")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LaminaError(
            f"{where}: {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}). Save the file as "
            "UTF-8, for example with `iconv -f latin1 -t utf-8`."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_lines(text: str, place: str, form: str) -> Iterator[tuple[str, Any]]:
    """(place with line number, value) of each line that is not blank. Only \\n ends a line: U+2028 may stand in a text.

    Raises
    ------
    LaminaError
        At the first line that is not JSON, with the `form` that it should have.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            at = f"{place}, line {number}"
            try:
                yield at, json.loads(line)
            except json.JSONDecodeError as error:
                raise LaminaError(f"{at}: not JSON ({error.msg}, column {error.colno}). {form}") from error


def shown(value: Any) -> str:
    """A value as JSON writes it, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"

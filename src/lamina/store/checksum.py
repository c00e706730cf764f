"""The checksum, the path and the origin that stand inside each file of lamina.

JSON and safetensors hold `lamina.sha256`: the hash of the whole file with zeros in the place of its digits. Parquet has
checksums of its pages, see `lamina.store.parquet`. `lamina.path` is where the file belongs below `results`, which names
its model, calibration, selector and size: a file that stands in the place of another one is refused. `lamina.job` says
which job wrote the file: `python -m lamina.store.checksum FILE …` prints its rule, options, inputs and code.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from lamina.errors import LaminaError, explained

KEY, PATH, JOB = "lamina.sha256", "lamina.path", "lamina.job"
PORTABLE = ("exports", "tables")  # what users take elsewhere, and what is kept for the database
PARQUET = b"PAR1"
_BLANK = 64 * "0"
_MARK = re.compile(re.escape(KEY.encode()) + rb".{2,6}?([0-9a-f]{64})", re.DOTALL)
_WRITTEN_AS = re.compile(re.escape(PATH.encode()) + rb'[\\": ]+([^\\"]*)')
_HEAD = 1 << 12  # bytes at the beginning of a file, where the digits and the path are

_now: dict[str, str] = {}  # what stands in every file that this process writes


def tell(text: str) -> None:
    """From now on, this process writes into its files which job it is."""
    _now[JOB] = text.strip()


def origin(path: str | Path) -> dict[str, str]:
    """What this process writes into the file of a path."""
    below = Path(path).absolute().parts
    below = below[len(below) - below[::-1].index("results") :] if "results" in below else ()
    place = quote("/".join(below), safe="/=+,") if below and below[0] not in PORTABLE else ""
    return ({PATH: place} if place else {}) | _now


def blank(path: str | Path) -> dict[str, str]:
    """The names and values that the JSON or safetensors file of a path must begin with, for `put`."""
    return {KEY: _BLANK, **origin(path)}


def put(path: str | Path) -> None:
    """Write the checksum of a file into its blank; a ValueError if it has none."""
    with Path(path).open("r+b") as file:
        at, _, digest = _sums(file)
        if at is None:
            raise ValueError(f"{path} has no blank for a checksum")
        file.seek(at)
        file.write(digest.encode())


def check(path: str | Path) -> None:
    """Refuse a JSON or safetensors file that is not what was written there, by a LaminaError with its name and the
    remedy.

    A file without a checksum passes.
    """
    with Path(path).open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return
        at, written, digest = _sums(file)
        if at is not None and written != digest:
            raise damaged(path, "what it holds is not what was written")
        file.seek(0)
        if at is not None and (found := _WRITTEN_AS.search(file.read(_HEAD))):
            check_path(path, found[1].decode())


def check_path(path: str | Path, written: str) -> None:
    """Refuse a file that was `written` in the place of another one; the folder of results may have been moved."""
    if not quote(Path(path).absolute().as_posix(), safe="/=+,").endswith(f"/{written}"):
        raise LaminaError(
            f"{path} is the file of another place, {written}: files of results have changed places. Delete both and "
            "run again: they are made anew."
        )


def read_json(path: str | Path) -> dict[str, Any]:
    """Keys and values of a JSON file that lamina wrote; a LaminaError if it is damaged."""
    check(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no keys and values")
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    return {name: value for name, value in values.items() if name not in (KEY, PATH, JOB)}


def damaged(path: str | Path, reason: str) -> LaminaError:
    """The error of a file that cannot be read."""
    return LaminaError(
        f"{path} is damaged: {reason.rstrip('.')}. Delete it and run again: it is made anew."
    )


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


def job(path: Path) -> dict[str, Any]:
    """Rule, wildcards, inputs, options and code of the job that wrote a file; a LaminaError if the file has none."""
    if path.is_dir() and (path / "adapter_model.safetensors").is_file():
        path = path / "adapter_model.safetensors"
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if head.startswith(PARQUET):
                import pyarrow.parquet as pq

                text = (pq.read_schema(path).metadata or {})[JOB.encode()]
            elif head.startswith(b"{"):
                text = json.loads(path.read_text(encoding="utf-8"))[JOB]
            else:
                header = json.loads(file.read(int.from_bytes(head, "little")))
                text = json.loads(header["__metadata__"]["lamina"])[JOB]
        return dict(json.loads(text))
    except (OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise LaminaError(
            f"{path} does not say which job wrote it. Tables, plans, patches, adapters do."
        ) from error


if __name__ == "__main__":
    with explained():
        for name in sys.argv[1:]:
            print(json.dumps({"file": name, **job(Path(name))}, indent=2))

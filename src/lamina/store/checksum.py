"""The checksum and the origin that every file of lamina contains.

JSON and safetensors files hold `lamina.sha256`: the hash of the whole file with zeros in place of
the digits. Parquet has checksums of its pages, see `lamina.store.parquet`. `lamina.job` says which
job wrote the file; `lamina explain FILE` prints it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lamina.errors import LaminaError

KEY = "lamina.sha256"
JOB = "lamina.job"
PARQUET = b"PAR1"
# In the folder of an adapter, the training curve says which job wrote both.
ADAPTER = "adapter_model.safetensors"
TRAINING_CURVE = "training.parquet"
_BLANK = 64 * "0"
_MARK = re.compile(re.escape(KEY.encode()) + rb".{2,6}?([0-9a-f]{64})", re.DOTALL)
_HEAD_SIZE = 1 << 12  # bytes at the beginning of a file that contain the digits
_CHUNK_SIZE = 1 << 22  # bytes that are hashed at a time


class _Seal(NamedTuple):
    """The checksum in a file: where its digits begin, the written ones and the right ones."""

    offset: int
    written_digest: str
    computed_digest: str


def blank_seal(job_description: str = "") -> dict[str, str]:
    """The entries that a JSON or safetensors file must begin with, for `write_checksum`.

    job_description: Which job writes the file; empty outside a job.
    """
    return {KEY: _BLANK, JOB: job_description} if job_description else {KEY: _BLANK}


def write_checksum(path: str | Path) -> None:
    """Write the checksum of a file into its blank. Raises ValueError if it has none."""
    with Path(path).open("r+b") as file:
        seal = _read_seal(file)
        if seal is None:
            raise ValueError(f"{path} has no blank for a checksum")
        file.seek(seal.offset)
        file.write(seal.computed_digest.encode())


def check_file(path: str | Path) -> None:
    """Refuse a JSON or safetensors file that was changed after it was written.

    Parquet files and files without a checksum pass. Raises LaminaError with the name of the file
    and the remedy.
    """
    with Path(path).open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return
        seal = _read_seal(file)
    if seal is not None and seal.written_digest != seal.computed_digest:
        raise damaged_file(path, "its contents are not what was written")


def read_json(path: str | Path) -> dict[str, Any]:
    """Keys and values of a JSON file that lamina wrote. Raises LaminaError if it is damaged."""
    check_file(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is not an object with keys and values")
    except (ValueError, RecursionError) as error:
        raise damaged_file(path, str(error)) from error
    return {name: value for name, value in values.items() if name not in (KEY, JOB)}


def damaged_file(path: str | Path, reason: str) -> LaminaError:
    """The error of a file that cannot be read."""
    return LaminaError(
        f"{path} is damaged: {reason.rstrip('.')}. Delete it and run again: it will be remade."
    )


def _read_seal(file: BinaryIO) -> _Seal | None:
    """The checksum in an open file; None if there is none."""
    file.seek(0)
    match = _MARK.search(file.read(_HEAD_SIZE))
    if match is None:
        return None
    start, end = match.span(1)
    file.seek(0)
    sha256 = hashlib.sha256(file.read(start) + _BLANK.encode())
    file.seek(end)
    while chunk := file.read(_CHUNK_SIZE):
        sha256.update(chunk)
    return _Seal(start, match[1].decode(), sha256.hexdigest())


def read_origin(path: Path) -> dict[str, Any]:
    """Rule, wildcards, inputs, options and code of the job that wrote a file.

    path: A file that lamina wrote, or the folder of an adapter.

    Raises LaminaError if the file does not record it.
    """
    if (path / TRAINING_CURVE).is_file():
        path = path / TRAINING_CURVE
    elif path.name == ADAPTER:
        path = path.with_name(TRAINING_CURVE)
    try:
        return dict(json.loads(_job_facts(path)))
    except (OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise LaminaError(
            f"{path} does not say which job wrote it. Name a table, plan, patch or adapter."
        ) from error


def _job_facts(path: Path) -> str:
    """The facts of the job that wrote a Parquet, JSON or safetensors file, as text."""
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(PARQUET):
            import pyarrow.parquet as pq

            metadata = pq.read_schema(path).metadata or {}
            return str(metadata[JOB.encode()].decode())
        if head.startswith(b"{"):
            return str(json.loads(path.read_text(encoding="utf-8"))[JOB])
        # The first eight bytes of a safetensors file are the size of its header.
        header = json.loads(file.read(int.from_bytes(head, "little")))
        return str(json.loads(header["__metadata__"]["lamina"])[JOB])

"""The only code that writes and reads the Parquet files of lamina; and the schemas of the tables.

A table's grain and columns are the contract between the stages that measure and all readers: SQL views, figures, the
report; `lamina.tables` holds them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from lamina.errors import LaminaError
from lamina.store import checksum as seal
from lamina.tables import TABLES
from lamina.version import VERSION

SCHEMA_VERSION = "2"

_LISTS = {"list<string>": pa.list_(pa.string()), "list<float>": pa.list_(pa.float32())}


def schema(table: str) -> pa.Schema:
    """Arrow schema of `table`. Raises KeyError if there is no such table."""
    kinds = {name: kind for name, (kind, _) in TABLES[table].columns.items()}
    return pa.schema(
        [(name, _LISTS.get(kind) or pa.type_for_alias(kind)) for name, kind in kinds.items()]
    )


def from_rows(table: str, rows: Iterable[Mapping[str, Any]], **keys: Any) -> pa.Table:
    """Build `table` from row mappings; every row gets the `keys`, and missing columns become null."""
    wanted = schema(table)
    full = [{**keys, **row} for row in rows]
    unknown = {name for row in full for name in row} - set(wanted.names)
    if unknown:
        raise KeyError(f"table {table} has no column {sorted(unknown)}")
    return pa.Table.from_pylist(full, schema=wanted)


def write(path: str | Path, data: pa.Table, provenance: Mapping[str, str] | None = None) -> None:
    """Write one Parquet file, as `replacing` does.

    `provenance` (code digest, params hash, seed …) goes into the file's metadata, which changes only if content may.
    """
    stamp = {"version": VERSION, "schema_version": SCHEMA_VERSION, **(provenance or {})}
    metadata = {f"lamina.{name}": str(value) for name, value in stamp.items()} | seal.origin()
    metadata[seal.KEY] = _footer(data.schema, metadata)
    data = data.replace_schema_metadata(metadata)
    with replacing(path) as temporary:
        pq.write_table(data, temporary, compression="zstd", write_page_checksum=True)


def _footer(columns: pa.Schema, metadata: Mapping[str, str]) -> str:
    """A hash of the names of columns and the metadata of a table, for which Parquet has no checksum."""
    return hashlib.sha256(
        json.dumps([sorted(metadata.items()), columns.names]).encode()
    ).hexdigest()


def metadata(path: str | Path) -> dict[str, str]:
    """The metadata that `write` put into a file; the names have no prefix `lamina.`.

    Raises LaminaError if the file is damaged.
    """
    written = read(path).schema.metadata or {}
    return {
        name.decode().removeprefix("lamina."): value.decode() for name, value in written.items()
    }


def kept_provenance(path: str | Path) -> dict[str, str]:
    """The provenance that a file was written with."""
    written = metadata(path)
    return {name: written[name] for name in ("code", "params", "seed") if name in written}


def read(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one Parquet file written by `write`; its file metadata is under the schema's metadata.

    Raises LaminaError if the file is damaged.
    """
    with reading(path):
        data = pq.read_table(
            path, columns=columns, partitioning=None, page_checksum_verification=True
        )
        schema = pq.read_schema(path)
        written = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
        if seal.KEY in written and written.pop(seal.KEY) != _footer(schema, written):
            raise ValueError("its columns or its metadata are not what was written")
    return data


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """A context for reading a file of lamina. If the file is incomplete or damaged, the error names it and the remedy.

    Raises LaminaError if the file was changed after it was written, or cannot be read in its format.
    """
    seal.check(path)
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
        pa.ArrowException,
        SafetensorError,
    ) as error:
        raise seal.damaged(
            path, " ".join(str(error).split())[:200] or type(error).__name__
        ) from error


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write keys and values as JSON, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps({**seal.blank(), **value}, indent=2) + "\n", encoding="utf-8"
        )
        seal.put(temporary)


def write_tensors(
    path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str]
) -> None:
    """Write torch tensors as safetensors, as `replacing` does."""
    from safetensors.torch import save_file

    # Of several keys, safetensors would write one or the other first. The blank comes before metadata of any size,
    # because it is looked for at the beginning of the file.
    header = {"lamina": json.dumps({**seal.blank(), **dict(sorted(metadata.items()))})}
    with replacing(path) as temporary:
        save_file(dict(tensors), temporary, metadata=header)
        seal.put(temporary)


def tensors_metadata(handle: Any) -> dict[str, str]:
    """The metadata that `write_tensors` put into a file, from the file's open handle."""
    header = handle.metadata() or {}
    return dict(json.loads(header["lamina"])) if "lamina" in header else header


def gather(table: str, paths: Sequence[str | Path]) -> pa.Table:
    """Concatenate files of one table, in the order given; no files give a table with zero rows.

    Columns that a file lacks become null, so that a new column of a table does not make old measurements useless.

    Raises LaminaError if a file has columns that the table lacks, or columns of another type: another version of lamina
    wrote it.
    """
    wanted = schema(table)
    parts = [wanted.empty_table()]
    for path in paths:
        part = read(path)
        unknown = [field.name for field in part.schema if field not in wanted]
        if unknown:
            raise LaminaError(
                f"{path} does not hold the columns of table '{table}' ({', '.join(unknown)}): it was written by "
                "another version of lamina. Delete the file (or the results folder) and run again."
            )
        there = part.schema.names
        parts.append(
            pa.table(
                [part[f.name] if f.name in there else pa.nulls(len(part), f.type) for f in wanted],
                schema=wanted,
            )
        )
    return pa.concat_tables(parts)


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file (JSON, HTML, SVG), as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; if all goes well, it replaces `path`. So `path` never holds an incomplete file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        mask = os.umask(0o077)
        os.umask(mask)
        if temporary.is_file():
            temporary.chmod(0o666 & ~mask)  # whatever wrote it
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)

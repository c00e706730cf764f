"""The only code that writes Parquet, and the schemas of the tables that it writes.

A table's grain and columns are the contract between the stages that measure and everything that reads: SQL views,
figures, the report. Each table is a module beside this one: a new one is found without being named here.
"""

import hashlib
import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lamina import tables
from lamina.errors import LaminaError
from lamina.version import VERSION

SCHEMA_VERSION = "2"

# The schema modules by the name of their table.
TABLES: dict[str, ModuleType] = {
    name: importlib.import_module(f"lamina.tables.{name}")
    for _, name, _ in pkgutil.iter_modules(tables.__path__)
    if name not in ("answers", "columns", "store")
}


def schema(table: str) -> pa.Schema:
    """Arrow schema of `table`.

    Raises
    ------
    KeyError
        If there is no such table.
    """
    return pa.schema([pa.field(name, kind) for name, (kind, _) in TABLES[table].COLUMNS.items()])


def from_rows(table: str, rows: Iterable[Mapping[str, Any]], **keys: Any) -> pa.Table:
    """Build `table` from row mappings; `keys` are put into every row, columns left out become null."""
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
    metadata = {f"lamina.{name}".encode(): str(value).encode() for name, value in stamp.items()}
    with replacing(path) as temporary:
        pq.write_table(data.replace_schema_metadata(metadata), temporary, compression="zstd")


def provenance(options: Mapping[str, Any]) -> dict[str, str]:
    """What a job's file says of its origin: the digest of its code, a hash of its settings, its seed where it has one.

    `options` are the script's. Where it writes to does not count, nor which block of a sweep it measures.
    """
    aside = {"code", "output", "samples", "table", "block"}
    settings = sorted((name, str(value)) for name, value in options.items() if name not in aside)
    found = {"code": str(options["code"]), "params": hashlib.sha256(repr(settings).encode()).hexdigest()}
    return found | ({"seed": str(options["seed"])} if "seed" in options else {})


def kept_provenance(path: str | Path) -> dict[str, str]:
    """The provenance that a file was written with."""
    metadata = pq.read_schema(path).metadata or {}
    names = ("code", "params", "seed")
    return {
        name: metadata[f"lamina.{name}".encode()].decode() for name in names if f"lamina.{name}".encode() in metadata
    }


def read(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one Parquet file written by `write`; its file metadata is under the schema's metadata."""
    return pq.read_table(path, columns=columns, partitioning=None)


def gather(table: str, paths: Sequence[str | Path]) -> pa.Table:
    """Concatenate files of one table, in the order given; no files give a table with zero rows.

    Columns that a file lacks are null: what was measured before a column was thought of need not be measured again.

    Raises
    ------
    LaminaError
        If a file has columns that the table lacks, or of another type: another version of lamina wrote it.
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
            pa.table([part[f.name] if f.name in there else pa.nulls(len(part), f.type) for f in wanted], schema=wanted)
        )
    return pa.concat_tables(parts)


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file (JSON, HTML, SVG), as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name to write to, which takes the place of `path` once all went well: that never holds half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

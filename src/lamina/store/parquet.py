"""Read and write files completely or not at all: Parquet, JSON, safetensors, text.

No other module writes lamina's Parquet files. What a row of a table is, and its columns, are the
contract between the measuring stages and all readers (SQL views, figures, the report);
`lamina.tables` defines it.
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
from lamina.store import checksum
from lamina.tables import TABLES
from lamina.version import VERSION

SCHEMA_VERSION = "2"

_LIST_TYPES = {"list<string>": pa.list_(pa.string()), "list<float>": pa.list_(pa.float32())}
_LONGEST_REASON = 200  # characters of a library's error that a message of lamina quotes


def schema_of(table: str) -> pa.Schema:
    """Arrow schema of `table`. Raises KeyError if there is no such table."""
    return pa.schema(
        [(name, _arrow_type(column.type)) for name, column in TABLES[table].columns.items()]
    )


def _arrow_type(type_name: str) -> pa.DataType:
    return _LIST_TYPES.get(type_name) or pa.type_for_alias(type_name)


def from_rows(table: str, rows: Iterable[Mapping[str, Any]], **keys: Any) -> pa.Table:
    """Build `table` from row mappings; every row gets the `keys`, and missing columns become null.

    Raises KeyError if a row or the keys have a column that the table lacks.
    """
    table_schema = schema_of(table)
    complete_rows = [{**keys, **row} for row in rows]
    unknown_columns = set[str]().union(*complete_rows) - set(table_schema.names)
    if unknown_columns:
        raise KeyError(f"table {table} has no column {sorted(unknown_columns)}")
    return pa.Table.from_pylist(complete_rows, schema=table_schema)


def write_table(
    path: str | Path, data: pa.Table, provenance: Mapping[str, str] | None = None
) -> None:
    """Write one Parquet file, as `replace_file` does.

    `provenance` (code digest, params hash, seed, the job …) goes into the file's metadata. It
    changes only if the content may.
    """
    facts = {"version": VERSION, "schema_version": SCHEMA_VERSION, **(provenance or {})}
    file_metadata = {f"lamina.{name}": str(value) for name, value in facts.items()}
    file_metadata[checksum.KEY] = _footer_digest(data.schema, file_metadata)
    data = data.replace_schema_metadata(file_metadata)
    with replace_file(path) as temporary:
        pq.write_table(data, temporary, compression="zstd", write_page_checksum=True)


def _footer_digest(columns: pa.Schema, file_metadata: Mapping[str, str]) -> str:
    """A hash of a table's column names and metadata, for which Parquet has no checksum."""
    footer = json.dumps([sorted(file_metadata.items()), columns.names])
    return hashlib.sha256(footer.encode()).hexdigest()


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata that `write_table` put into a file, without the prefix `lamina.` in the names.

    Raises LaminaError if the file is damaged.
    """
    file_metadata = _decoded(read_table(path).schema.metadata)
    return {name.removeprefix("lamina."): value for name, value in file_metadata.items()}


def _decoded(file_metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in (file_metadata or {}).items()}


def kept_provenance(path: str | Path) -> dict[str, str]:
    """The provenance that was written into a file."""
    file_metadata = read_metadata(path)
    return {
        name: file_metadata[name] for name in ("code", "params", "seed") if name in file_metadata
    }


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one Parquet file that `write_table` wrote. The schema's metadata holds the file's.

    Raises LaminaError if the file is damaged.
    """
    with explaining_damage(path):
        data = pq.read_table(
            path, columns=columns, partitioning=None, page_checksum_verification=True
        )
        file_schema = pq.read_schema(path)
        file_metadata = _decoded(file_schema.metadata)
        written_digest = file_metadata.pop(checksum.KEY, None)
        if written_digest not in (None, _footer_digest(file_schema, file_metadata)):
            raise ValueError("its columns or its metadata are not what was written")
    return data


@contextmanager
def explaining_damage(path: str | Path) -> Iterator[None]:
    """A context for reading a file of lamina.

    Raises LaminaError, with the file and the remedy, if the file was changed after it was written,
    is incomplete, or cannot be read in its format.
    """
    checksum.check_file(path)
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
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise checksum.damaged_file(path, reason or type(error).__name__) from error


def write_json(path: str | Path, value: Mapping[str, Any], job_description: str = "") -> None:
    """Write keys and values as JSON, as `replace_file` does.

    job_description: Which job writes the file, for `checksum.read_origin`.
    """
    text = json.dumps({**checksum.blank_seal(job_description), **value}, indent=2)
    with replace_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
        checksum.write_checksum(temporary)


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str],
    job_description: str = "",
) -> None:
    """Write torch tensors as safetensors, as `replace_file` does.

    job_description: Which job writes the file, for `checksum.read_origin`.
    """
    from safetensors.torch import save_file

    # With several keys, safetensors would write them in varying order. The blank comes before
    # metadata of any size, because it is looked for at the beginning of the file.
    names = checksum.blank_seal(job_description) | dict(sorted(metadata.items()))
    header = {"lamina": json.dumps(names)}
    with replace_file(path) as temporary:
        save_file(dict(tensors), temporary, metadata=header)
        checksum.write_checksum(temporary)


def tensors_metadata(handle: Any) -> dict[str, str]:
    """The metadata that `write_tensors` put into a file, from the file's open handle."""
    header = handle.metadata() or {}
    return dict(json.loads(header["lamina"])) if "lamina" in header else header


def gather_tables(table: str, paths: Sequence[str | Path]) -> pa.Table:
    """Concatenate files of one table in the given order; without files, the table has no rows.

    Columns that a file lacks become null, so that a new column of a table does not make old
    measurements useless.

    Raises LaminaError if a file has columns that the table lacks, or columns of another type:
    another version of lamina wrote it.
    """
    table_schema = schema_of(table)
    parts = [table_schema.empty_table()]
    parts += [_conform(table, path, table_schema) for path in paths]
    return pa.concat_tables(parts)


def _conform(table: str, path: str | Path, table_schema: pa.Schema) -> pa.Table:
    """The content of a file of `table`, with the columns of `table_schema` in their order."""
    part = read_table(path)
    unknown_columns = [field.name for field in part.schema if field not in table_schema]
    if unknown_columns:
        raise LaminaError(
            f"{path} does not hold the columns of table '{table}' ({', '.join(unknown_columns)}): "
            "it was written by another version of lamina. Delete the file (or the results folder) "
            "and run again."
        )
    columns = []
    for field in table_schema:
        if field.name in part.schema.names:
            columns.append(part[field.name])
        else:
            columns.append(pa.nulls(len(part), field.type))
    return pa.table(columns, schema=table_schema)


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file (CSV, HTML, SVG), as `replace_file` does."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """A temporary path for a file or a folder to write.

    It replaces `path` if there is no error, so `path` never holds an incomplete file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.is_file():
            temporary.chmod(0o666 & ~_umask())  # regardless of what wrote it
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The permissions that this process denies new files. It can only be read by changing it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask

"""The tables of a run: one pyarrow schema each, and the only code that writes Parquet.

A table's grain and columns are the contract between the stages that measure and everything that reads: SQL views,
figures, the report. `sql/views.sql` documents every column for people who query.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lamina.errors import LaminaError
from lamina.version import VERSION

SCHEMA_VERSION = "2"

_STRING, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()

SELECTION = {"model": _STRING, "calibration": _STRING, "selector": _STRING, "removed": _INT}
VARIANT = SELECTION | {"recovery": _STRING, "healing": _STRING}

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "models": {
        "model": _STRING,
        "family": _STRING,
        "n_layers": _INT,
        "hidden_size": _INT,
        "vocabulary": _INT,
        "parameters": _INT,
        "weights_bytes": _INT,
        "dtype": _STRING,
        "source": _STRING,
        "revision": _STRING,
        "weights_sha256": _STRING,
    },
    "calibrations": {
        "model": _STRING,
        "calibration": _STRING,
        "kind": _STRING,
        "n_samples": _INT,
        "n_tokens": _INT,
        "chance_accuracy": _FLOAT,
        "source": _STRING,
        "split": _STRING,
        "seed": _INT,
    },
    "activations": {
        "model": _STRING,
        "calibration": _STRING,
        "layer": _INT,
        "span": _INT,
        "cosine": _FLOAT,
        "cosine_stderr": _FLOAT,
        "angular_last": _FLOAT,
        "angular_last_stderr": _FLOAT,
        "l2_relative": _FLOAT,
        "norm": _FLOAT,
        "channel_magnitude": pa.list_(pa.float32()),
        "n_samples": _INT,
        "n_tokens": _INT,
    },
    "sweeps": SELECTION
    | {
        "unit": _STRING,
        "sample": _INT,
        "correct": _BOOL,
        "correct_norm": _BOOL,
        "nll": _FLOAT,
        "n_tokens": _INT,
        "gold_margin": _FLOAT,
        "output_cosine": _FLOAT,
        "output_norm": _FLOAT,
        "output_js": _FLOAT,
        "output_kl": _FLOAT,
        "cosine": _FLOAT,
        "angular_last": _FLOAT,
        "taylor": _FLOAT,
        "magnitude": _FLOAT,
    },
    "relevance": SELECTION
    | {
        "metric": _STRING,
        "unit": _STRING,
        "layer": _INT,
        "component": _STRING,
        "score": _FLOAT,
        "ci_low": _FLOAT,
        "ci_high": _FLOAT,
        "n_samples": _INT,
        "rank": _INT,
        "reason": _STRING,
    },
    "plans": SELECTION
    | {
        "unit": _STRING,
        "position": _INT,
        "score": _FLOAT,
        "accuracy_before": _FLOAT,
        "accuracy_after": _FLOAT,
        "refused": _STRING,
    },
    "patches": VARIANT
    | {
        "boundary": _STRING,
        "start": _INT,
        "end": _INT,
        "ridge": _FLOAT,
        "ridge_at_edge": _BOOL,
        "rank": _INT,
        "fit_error_before": _FLOAT,
        "fit_error": _FLOAT,
        "heldout_error_before": _FLOAT,
        "heldout_error": _FLOAT,
        "mae_before": _FLOAT,
        "mae_after": _FLOAT,
        "channel_mae_before": pa.list_(pa.float32()),
        "channel_mae_after": pa.list_(pa.float32()),
        "antisymmetric_share": _FLOAT,
        "parameters": _INT,
        "n_samples": _INT,
        "n_tokens": _INT,
    },
    "training": VARIANT
    | {
        "step": _INT,
        "epoch": _INT,
        "loss": _FLOAT,
        "validation_loss": _FLOAT,
        "learning_rate": _FLOAT,
        "tokens": _INT,
        "chosen": _BOOL,
    },
    "benchmarks": VARIANT
    | {
        "task": _STRING,
        "metric": _STRING,
        "value": _FLOAT,
        "stderr": _FLOAT,
        "n_samples": _INT,
        "n_shot": _INT,
        "higher_is_better": _BOOL,
        "task_version": _STRING,
    },
    "benchmark_samples": VARIANT | {"task": _STRING, "sample": _INT, "metric": _STRING, "value": _FLOAT},
    "efficiency": VARIANT
    | {
        "runs": _INT,
        "device": _STRING,
        "dtype": _STRING,
        "prompt": _INT,
        "generate": _INT,
        "batch": _INT,
        "repeats": _INT,
        "parameters": _INT,
        "parameters_ratio": _FLOAT,
        "weights_bytes": _INT,
        "weights_bytes_ratio": _FLOAT,
        "kv_bytes_per_token": _INT,
        "kv_bytes_per_token_ratio": _FLOAT,
        "latency_ms": _FLOAT,
        "latency_ratio": _FLOAT,
        "latency_ratio_stderr": _FLOAT,
        "tokens_per_second": _FLOAT,
        "tokens_per_second_ratio": _FLOAT,
        "tokens_per_second_ratio_stderr": _FLOAT,
        "peak_memory_bytes": _INT,
        "peak_memory_ratio": _FLOAT,
    },
    "diagnoses": {
        "model": _STRING,
        "calibration": _STRING,
        "diagnosis": _STRING,
        "kind": _STRING,
        "layer": _INT,
        "measure": _STRING,
        "value": _FLOAT,
        "ci_low": _FLOAT,
        "ci_high": _FLOAT,
        "n_samples": _INT,
        "control": _FLOAT,
    },
    "jobs": {
        "rule": _STRING,
        "wildcards": _STRING,
        "seconds": _FLOAT,
        "cpu_seconds": _FLOAT,
        "max_rss_mb": _FLOAT,
        "device": _STRING,
    },
}

TABLES = tuple(COLUMNS)


def schema(table: str) -> pa.Schema:
    """Arrow schema of `table`.

    Raises
    ------
    KeyError
        If there is no such table.
    """
    return pa.schema([pa.field(name, kind) for name, kind in COLUMNS[table].items()])


def from_rows(table: str, rows: Iterable[Mapping[str, Any]], **keys: Any) -> pa.Table:
    """Build `table` from row mappings; `keys` are put into every row, columns left out become null."""
    wanted = schema(table)
    full = [{**keys, **row} for row in rows]
    unknown = {name for row in full for name in row} - set(wanted.names)
    if unknown:
        raise KeyError(f"table {table} has no column {sorted(unknown)}")
    return pa.Table.from_pylist(full, schema=wanted)


def write(path: str | Path, data: pa.Table, provenance: Mapping[str, str] | None = None) -> None:
    """Write one Parquet file, first under a temporary name so that the final name never holds half a file.

    `provenance` (code digest, params hash, seed …) goes into the file's metadata, which changes only if content may.
    """
    stamp = {"version": VERSION, "schema_version": SCHEMA_VERSION, **(provenance or {})}
    metadata = {f"lamina.{name}".encode(): str(value).encode() for name, value in stamp.items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(data.replace_schema_metadata(metadata), temporary, compression="zstd")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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

    Raises
    ------
    LaminaError
        If a file's columns are not the table's, which means that another version of lamina wrote it.
    """
    wanted = schema(table)
    parts = []
    for path in paths:
        part = read(path).replace_schema_metadata(None)
        if part.schema != wanted:
            raise LaminaError(
                f"{path} does not hold the columns of table '{table}': it was written by another version of lamina. "
                "Delete the file (or the results folder) and run again."
            )
        parts.append(part)
    return pa.concat_tables(parts) if parts else wanted.empty_table()


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file (JSON, HTML, SVG) through a temporary name, as `write` does."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

"""Whether two runs measured the same."""

import math
from pathlib import Path
from typing import Any

from lamina.store import parquet

# Measured times and memory differ from run to run; what remains of `efficiency` is counted.
TIMED_COLUMNS = {
    "latency_ms",
    "latency_ratio",
    "latency_ratio_stderr",
    "tokens_per_second",
    "tokens_per_second_ratio",
    "tokens_per_second_ratio_stderr",
    "peak_memory_bytes",
    "peak_memory_ratio",
}
NEAR_TIE = 1e-4  # nats between the two best choices


def differences(first_file: Path, second_file: Path) -> list[str]:
    """Rows in which two files of one table differ.

    Numbers may differ by 1e-5, and a choice where two were nearly tied.
    """
    first_rows = read_rows(first_file)
    second_rows = read_rows(second_file)
    if len(first_rows) != len(second_rows):
        return [f"{first_file.name}: {len(first_rows)} rows against {len(second_rows)}"]
    lines = []
    for first, second in zip(first_rows, second_rows, strict=True):
        columns = list_different_columns(first, second)
        if columns:
            values = f"{columns[0]} {first[columns[0]]} against {second[columns[0]]}"
            lines.append(f"{first_file.name}: {values} in {first}")
    return lines


def list_different_columns(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    columns = [column for column in first if not is_same(first[column], second[column])]
    margin = first.get("gold_margin")
    if margin is not None and abs(margin) < NEAR_TIE:
        return [column for column in columns if not column.startswith("correct")]
    return columns


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows without measured times, in the order of their keys."""
    table = parquet.read_table(file)
    timed = [column for column in table.column_names if column in TIMED_COLUMNS]
    return sorted(table.drop_columns(timed).to_pylist(), key=list_key_values)


def list_key_values(row: dict[str, Any]) -> list[str]:
    """The values of a row that are no measurements."""
    return [str(value) for value in row.values() if not isinstance(value, (float, list))]


def is_same(first: Any, second: Any) -> bool:
    """Whether two values are equal; numbers within 1e-5."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, float) and isinstance(second, float):
        if math.isnan(first) or math.isnan(second):
            return math.isnan(first) and math.isnan(second)
        return math.isclose(first, second, rel_tol=1e-5, abs_tol=1e-5)
    return bool(first == second)

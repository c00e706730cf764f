"""Whether two runs measured the same."""

import math
from pathlib import Path
from typing import Any

from lamina.store import parquet

# Measured times and memory differ from run to run; what remains of `efficiency` is counted.
TIMED = {"latency_ms", "tokens_per_second", "peak_memory_bytes", "peak_memory_ratio"}
TIMED |= {
    f"{name}_ratio{end}" for name in ("latency", "tokens_per_second") for end in ("", "_stderr")
}
NEAR_TIE = 1e-4


def differences(one: Path, other: Path) -> list[str]:
    """Rows in which two files of one table differ; numbers may by 1e-5, a choice may where two were a tie."""
    left, right = (_rows(path) for path in (one, other))
    if len(left) != len(right):
        return [f"{one.name}: {len(left)} rows against {len(right)}"]
    found = []
    for a, b in zip(left, right, strict=True):
        names = [name for name in a if not _same(a[name], b[name])]
        margin = a.get("gold_margin")
        if margin is not None and abs(margin) < NEAR_TIE:
            names = [name for name in names if not name.startswith("correct")]
        if names:
            found.append(f"{one.name}: {names[0]} {a[names[0]]} against {b[names[0]]} in {a}")
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [
        {k: v for k, v in row.items() if k not in TIMED}
        for row in parquet.read_table(path).to_pylist()
    ]
    return sorted(
        rows,
        key=lambda row: [
            str(value) for value in row.values() if not isinstance(value, (float, list))
        ],
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)

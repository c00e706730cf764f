"""The rows of a run's tables as hashes, so that a change of the code can show that it changes no number.

    python tools/golden.py write RESULTS FILE     hashes of RESULTS/tables/*.parquet, and how many rows each table has
    python tools/golden.py compare BEFORE AFTER   which rows are gone and which are new, by table and key

A row is hashed without times, costs and origins, which differ between two runs of the same code. Floating-point numbers
are rounded to 6 significant digits: a sum in another order changes later ones. `--without NAME` leaves rows out that
hold a word, such as a metric that no longer exists.
"""

import argparse
import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TABLES_ASIDE = {"jobs", "efficiency"}  # times
COLUMNS_ASIDE = {"seconds", "source", "weights_sha256", "revision", "path", "layer_tokens"}
# Columns that only metrics had that were cut.
COLUMNS_ASIDE |= {
    "choice_scores",
    "choice_lengths",
    "shapley",
    "shapley_var",
    "presence",
    "presence_var",
}
# Table `training`: a healing's loss after thousands of float32 sums; the same on one machine with the same threads.
DIGITS = 6


def plain(value: Any) -> Any:
    """A value as text that is the same for equal numbers."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value:.{DIGITS - 1}e}"
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def rows(file: Path, without: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of one table without what differs between runs."""
    table = pq.read_table(file)
    names = sorted(set(table.column_names) - COLUMNS_ASIDE)
    listed = ({name: plain(row[name]) for name in names} for row in table.select(names).to_pylist())
    return [row for row in listed if not any(word in row.values() for word in without)]


def keys(row: dict[str, Any]) -> str:
    """What tells rows apart in a message: the short texts of a row, without its unit."""
    words = ("selector", "repair", "healing", "metric", "task", "kind")
    return " ".join(f"{name}={row[name]}" for name in words if isinstance(row.get(name), str))


def hashed(row: dict[str, Any]) -> str:
    """The hash of a row; columns that are null do not count, so that a new column changes no row."""
    text = json.dumps(
        {name: value for name, value in row.items() if value is not None}, sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("paths", nargs=2)
    parser.add_argument("--without", nargs="*", default=[])
    given = parser.parse_args()
    first, second = map(Path, given.paths)
    if given.what == "write":
        tables = {
            file.stem: sorted([hashed(row), keys(row)] for row in rows(file, tuple(given.without)))
            for file in sorted((first / "tables").glob("*.parquet"))
            if file.stem not in TABLES_ASIDE
        }
        second.write_text(json.dumps(tables, indent=0), encoding="utf-8")
        for name, listed in tables.items():
            print(
                f"{name:20} {len(listed):8} rows {hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]}"
            )
        return
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (first, second))
    for name in sorted(before.keys() | after.keys()):
        old, new = (
            Counter(tuple(each) for each in tables.get(name, [])) for tables in (before, after)
        )
        gone, come = old - new, new - old
        print(
            f"{name:20} {sum((old & new).values()):8} equal {sum(gone.values()):8} gone {sum(come.values()):8} new"
        )
        for label, differing in (("gone", gone), ("new", come)):
            for key, count in Counter(
                key for (_, key), n in differing.items() for _ in range(n)
            ).most_common(12):
                print(f"    {label} {count:6}  {key}")


if __name__ == "__main__":
    main()

"""Questions to a run: `make query Q=NAME` answers a file of `sql/queries`, `make sql` opens DuckDB's own shell on
the database.
"""

import argparse
import csv
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from lamina.config.explain import nearest
from lamina.errors import LaminaError, explained
from lamina.report import database
from lamina.report import queries as sql
from lamina.study import paths

DATABASE, QUERIES = "results/lamina.duckdb", Path(paths.own("sql/queries"))
WIDTH = 100  # characters of a line


def query(name: str, folder: Path = QUERIES) -> Path:
    """The file of a question, by its name or its path.

    Raises LaminaError if there is no question of that name. The message names the nearest one.
    """
    known = sorted(path.stem for path in folder.glob("*.sql"))
    if name not in known and not Path(name).is_file():
        raise LaminaError(
            f"there is no question '{name}'. {nearest(name, known)} Write: make query Q=NAME"
        )
    return folder / f"{name}.sql" if name in known else Path(name)


def ask(
    connection: duckdb.DuckDBPyConnection, question: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of the columns of an answer, and its rows.

    Raises LaminaError if DuckDB refuses the query. The message is that of DuckDB.
    """
    try:
        answer = connection.execute(question)
        return [column[0] for column in answer.description or []], answer.fetchall()
    except duckdb.Error as error:
        raise LaminaError(str(error)) from error


def shown(value: Any) -> str:
    """A value with at most four significant digits; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "[" + ", ".join(map(shown, value)) + "]" if isinstance(value, list) else str(value)


def answered(connection: duckdb.DuckDBPyConnection, text: str, width: float = float("inf")) -> str:
    """The answer as a table of as many columns as fit; if it has no rows, with the reason that its question gives."""
    names, rows = ask(connection, text)
    table = [names, *([shown(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    fit = next((n for n in range(len(widths), 1, -1) if sum(widths[:n]) + 2 * (n - 1) <= width), 1)
    table.insert(1, ["-" * each for each in widths])
    lines = [
        "  ".join(cell.ljust(n) for cell, n in zip(row[:fit], widths, strict=False)).rstrip()
        for row in table
    ]
    lines = [line if len(line) <= width else f"{line[: int(width) - 1]}…" for line in lines]
    lines.append(f"({len(rows)} rows)")
    if names[fit:]:
        lines.append(f"WIDE=1 shows more columns: {', '.join(names[fit:])}.")
    return "\n".join(lines + ([] if rows else list(filter(None, [sql.why_empty(text)]))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the named questions, or open a shell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="questions: files of sql/queries, without .sql")
    parser.add_argument("--csv", action="store_true", help="print answers as CSV, with all digits")
    parser.add_argument("--wide", action="store_true", help="print all columns")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `make query … | head` ends without a word
    texts = [sql.text_of(query(name)) for name in args.names]
    with database.open_database(DATABASE) as connection:
        for text in texts:
            if args.csv:
                names, rows = ask(connection, text)
                csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])
            else:
                wrapped = (
                    textwrap.wrap(line, WIDTH, drop_whitespace=False) for line in sql.comments(text)
                )
                lines = [part for parts in wrapped for part in parts]
                print(
                    *lines,
                    "",
                    answered(connection, text, float("inf") if args.wide else WIDTH),
                    sep="\n",
                )
    if not texts:
        command = Path(sys.executable).with_name("duckdb")
        os.execv(command, [str(command), "-readonly", DATABASE])


if __name__ == "__main__":
    with explained():
        main()

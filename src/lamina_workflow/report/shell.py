"""Questions to a run, from the command line.

`lamina query NAME` answers a file of `sql/queries`; `lamina sql` opens DuckDB's own shell on the
database.
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

from lamina import paths
from lamina.errors import LaminaError, report_errors
from lamina.options.explain import suggest
from lamina_workflow.report import database, queries

DATABASE = "results/lamina.duckdb"
QUERIES = Path(paths.locate("sql/queries"))
LINE_WIDTH = 100  # characters
COLUMN_GAP = "  "
UNLIMITED = sys.maxsize  # width of a table with all columns


def find_query(name: str) -> Path:
    """The file of a question, by its name or its path.

    Raises LaminaError if there is no such question. The message names the nearest one.
    """
    known = sorted(path.stem for path in QUERIES.glob("*.sql"))
    if name in known:
        return QUERIES / f"{name}.sql"
    if Path(name).is_file():
        return Path(name)
    raise LaminaError(
        f"there is no question '{name}'. {suggest(name, known)} Write: lamina query NAME"
    )


def run_query(
    connection: duckdb.DuckDBPyConnection, query: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The column names of an answer, and its rows.

    Raises LaminaError, with DuckDB's message, if DuckDB refuses the query.
    """
    try:
        answer = connection.execute(query)
        return [column[0] for column in answer.description or []], answer.fetchall()
    except duckdb.Error as error:
        raise LaminaError(str(error)) from error


def format_value(value: Any) -> str:
    """A value with at most four significant digits; empty for null."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_value, value)) + "]"
    return str(value)


def format_answer(
    connection: duckdb.DuckDBPyConnection, query: str, max_width: int = UNLIMITED
) -> str:
    """The answer as a table of as many columns as fit; without rows, with the reason."""
    names, rows = run_query(connection, query)
    cell_rows = [list(map(format_value, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cell_rows, strict=True)]
    n_columns = _count_fitting_columns(widths, max_width)
    rule_cells = ["-" * width for width in widths]

    lines = [
        _format_line(cells[:n_columns], widths[:n_columns], max_width)
        for cells in (names, rule_cells, *cell_rows)
    ]
    lines.append(f"({len(rows)} rows)")
    if names[n_columns:]:
        lines.append(f"--wide shows more columns: {', '.join(names[n_columns:])}.")
    reason = queries.explain_empty_answer(query)
    if not rows and reason:
        lines.append(reason)
    return "\n".join(lines)


def _count_fitting_columns(widths: Sequence[int], max_width: int) -> int:
    """How many of the first columns fit side by side; at least one."""
    for n_columns in range(len(widths), 1, -1):
        if sum(widths[:n_columns]) + len(COLUMN_GAP) * (n_columns - 1) <= max_width:
            return n_columns
    return 1


def _format_line(row: Sequence[str], widths: Sequence[int], max_width: int) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    line = COLUMN_GAP.join(cells).rstrip()
    if len(line) > max_width:
        return f"{line[: max_width - 1]}…"
    return line


def _print_csv(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    names, rows = run_query(connection, query)
    csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])


def _print_answer(connection: duckdb.DuckDBPyConnection, query: str, max_width: int) -> None:
    for line in queries.list_comment_lines(query):
        print(*textwrap.wrap(line, LINE_WIDTH, drop_whitespace=False), sep="\n")
    print()
    print(format_answer(connection, query, max_width))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the named questions, or open a shell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="questions: files of sql/queries, without .sql")
    parser.add_argument("--csv", action="store_true", help="print answers as CSV, with all digits")
    parser.add_argument("--wide", action="store_true", help="print all columns")
    options = parser.parse_args(arguments)

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lamina query … | head` ends without an error
    selected_queries = [queries.read_query_file(find_query(name)) for name in options.names]
    with database.open_database(DATABASE) as connection:
        for query in selected_queries:
            if options.csv:
                _print_csv(connection, query)
            else:
                _print_answer(connection, query, UNLIMITED if options.wide else LINE_WIDTH)
    if not selected_queries:
        command = Path(sys.executable).with_name("duckdb")
        os.execv(command, [str(command), "-readonly", DATABASE])


if __name__ == "__main__":
    with report_errors():
        main()

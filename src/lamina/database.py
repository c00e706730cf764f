"""The tables of a run in DuckDB: the views of `sql/views.sql` over Parquet files, in memory or as a file.

A file holds views only, so it stays small and is never behind the tables; its paths resolve against the folder from
which it is opened. `python -m lamina.database QUERY.sql` prints the answer of one of `sql/queries`.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from lamina.errors import LaminaError, explained
from lamina.tables import store

VIEWS = "sql/views.sql"
STORAGE_VERSION = "v1.2.0"  # by default DuckDB 2 writes files that no shell before it can open

_TABLE_FILE = re.compile(r"'results/tables/(\w+)\.parquet'")


def statements(views: str | Path, tables: Iterable[str | Path]) -> Iterator[str]:
    """Statements of the views file over these Parquet files, `{table}.parquet` each; tables without a file have none.

    Raises
    ------
    LaminaError
        If a file is not named like a table.
    """
    files = {Path(path).stem: Path(path).as_posix().replace("'", "''") for path in tables}
    for name in files:
        if name not in store.TABLES:
            raise LaminaError(f"{files[name]}: there is no table '{name}'. The tables are: {', '.join(store.TABLES)}.")
    for statement in duckdb.extract_statements(Path(views).read_text(encoding="utf-8")):
        table = _TABLE_FILE.search(statement.query)
        if table is None:
            yield statement.query
        elif table[1] in files:
            yield statement.query.replace(table[0], f"'{files[table[1]]}'")


def connect(views: str | Path, tables: Iterable[str | Path]) -> duckdb.DuckDBPyConnection:
    """Open the views of these Parquet files in memory, without the dictionary.

    No other file is looked at, whatever else is in their folder: a job that reads a table which is not among its inputs
    would race with the one that writes it. Views that need another table are not there, and a query on one fails.
    """
    connection = duckdb.connect()
    for statement in statements(views, tables):
        # DuckDB knows what a view reads: one whose tables are not all there cannot be made.
        with suppress(duckdb.CatalogException):
            connection.execute(statement)
    return connection


def build(views: str | Path, tables: Iterable[str | Path], output: str | Path) -> None:
    """Write all views with their dictionary into a database file, first under a temporary name.

    Raises
    ------
    LaminaError
        If a table has no file: the views of a file must all work.
    """
    files = [path for path in map(Path, tables) if path.exists()]
    missing = set(store.TABLES) - {path.stem for path in files}
    if missing:
        raise LaminaError(
            f"there is no {', '.join(f'{table}.parquet' for table in sorted(missing))} among the tables. "
            "Gather them first: snakemake report"
        )
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with duckdb.connect() as connection:
            place = str(temporary).replace("'", "''")
            connection.execute(f"ATTACH '{place}' AS output (STORAGE_VERSION '{STORAGE_VERSION}')")
            connection.execute("USE output")
            for statement in statements(views, files):
                connection.execute(statement)
            describe(connection)
            connection.execute("USE memory")
            connection.execute("DETACH output")
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


def describe(connection: duckdb.DuckDBPyConnection) -> None:
    """Comment the views of tables from their schemas, and columns that a view hands on as the view they come from.

    A view of its own has comments in `sql/views.sql` for itself and for the columns that it adds.
    """
    known: dict[str, dict[str, str]] = {}
    for name, sql in connection.execute(
        "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY view_oid"
    ).fetchall():
        columns = connection.execute(
            "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ? AND NOT internal", [name]
        ).fetchall()
        if name in store.TABLES:
            connection.execute(f"COMMENT ON VIEW {name} IS {_quoted(store.TABLES[name].GRAIN)}")
            given = {column: text for column, (_, text) in store.TABLES[name].COLUMNS.items()}
        else:
            read = [known.get(source, {}) for source in re.findall(r'\b(?:FROM|JOIN) [("]*(\w+)', sql)]
            given = {column: text for source in reversed(read) for column, text in source.items()}
        known[name] = {column: comment or given.get(column, "") for column, comment in columns}
        for column, comment in columns:
            if comment is None and column in given:
                connection.execute(f'COMMENT ON COLUMN {name}."{column}" IS {_quoted(given[column])}')


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def rows(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Answer of `query` as a list of mappings from column to value."""
    answer = connection.execute(query, parameters or {})
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def main(arguments: list[str]) -> None:
    """Print the answers of query files, run on the tables of the current folder."""
    with explained():
        if not arguments:
            raise LaminaError("no query given. Write: python -m lamina.database sql/queries/which_layers_matter.sql")
        files = [Path(f"results/tables/{table}.parquet") for table in store.TABLES]
        connection = connect(VIEWS, [file for file in files if file.exists()])
        for path in arguments:
            try:
                answer = connection.sql(Path(path).read_text(encoding="utf-8"))
            except duckdb.CatalogException as error:
                raise LaminaError(f"{path}: {error}\nIf a table is not there yet: snakemake report") from error
            answer.show(max_rows=10_000, max_width=10_000)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The tables of a run in DuckDB: the views of `sql/views.sql` over Parquet files, in memory or as a file.

A file holds views only, so it stays small and is never behind the tables; its paths resolve against the folder from
which it is opened. `python -m lamina.database QUERY.sql` prints the answer of one of `sql/queries`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import duckdb

from lamina.errors import LaminaError, explained
from lamina.tables import store

DEFAULT_TABLES = "results/tables"
STORAGE_VERSION = "v1.2.0"  # by default DuckDB 2 writes files that no shell before it can open


def statements(views: str | Path, folder: str | Path = DEFAULT_TABLES) -> str:
    """Text of the views file with its table paths pointing into `folder`."""
    text = Path(views).read_text(encoding="utf-8")
    return text.replace(f"'{DEFAULT_TABLES}/", f"'{Path(folder).as_posix()}/")


def connect(views: str | Path, folder: str | Path = DEFAULT_TABLES) -> duckdb.DuckDBPyConnection:
    """Open the views in memory.

    A table without a file is empty: the figures of a named target are drawn before the later stages have run.
    """
    text = statements(views, folder)
    connection = duckdb.connect()
    for table in store.TABLES:
        path = Path(folder) / f"{table}.parquet"
        if not path.exists():
            connection.register(f"empty_{table}", store.schema(table).empty_table())
            text = text.replace(f"'{path.as_posix()}'", f"empty_{table}")
    connection.execute(text)
    return connection


def build(views: str | Path, folder: str | Path, output: str | Path) -> None:
    """Write the views into a database file, first under a temporary name.

    Raises
    ------
    LaminaError
        If a table has no file: the views of a file must all work.
    """
    missing = [table for table in store.TABLES if not (Path(folder) / f"{table}.parquet").exists()]
    if missing:
        raise LaminaError(
            f"{folder} lacks {', '.join(f'{table}.parquet' for table in missing)}. "
            "Gather the tables first: snakemake report"
        )
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with duckdb.connect() as connection:
            place = str(temporary).replace("'", "''")
            connection.execute(f"ATTACH '{place}' AS output (STORAGE_VERSION '{STORAGE_VERSION}')")
            connection.execute("USE output")
            connection.execute(statements(views, folder))
            connection.execute("USE memory")
            connection.execute("DETACH output")
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


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
        connection = connect("sql/views.sql")
        for path in arguments:
            connection.sql(Path(path).read_text(encoding="utf-8")).show(max_rows=10_000, max_width=10_000)


if __name__ == "__main__":
    main(sys.argv[1:])

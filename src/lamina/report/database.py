"""The tables of a run in DuckDB: the views of `sql/views.sql` over Parquet files, in memory or as a file.

A file holds only views. Their tables are links under `studies/{study}/{number}/` beside the file: links take no space,
and nothing writes to these tables again. So a reader can read its tables until two more runs have ended. Paths in the
file are relative to the folder in which DuckDB is opened. Schema `main` holds the last study. Every study in the folder
has a schema of its own name, and schema `studies` holds the rows of all studies with a column `study`.
"""

import glob
import os
import re
import shutil
import sys
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import duckdb

from lamina.config.metrics import METRICS
from lamina.errors import LaminaError
from lamina.report import queries as sql
from lamina.store import checksum
from lamina.store import parquet as store

STORAGE_VERSION = "v1.2.0"  # by default DuckDB 2 writes files that no shell before it can open

STUDY = "The study: the name of the configuration file that the run was started with."

# Schemas that are there already. DuckDB takes names that differ only by case for one.
_TAKEN = ("main", "studies", "information_schema", "pg_catalog", "temp")

_DERIVED = re.compile(
    r"^CREATE OR REPLACE VIEW (\w+) AS\n", re.MULTILINE
)  # not one of a table alone
_TABLE_FILE = re.compile(r"'results/tables/(\w+)\.parquet'")


def statements(views: str | Path, tables: Iterable[str | Path]) -> Iterator[str]:
    """Statements of the views file over these Parquet files, `{table}.parquet` each; tables without a file have none.

    Raises LaminaError if a file is not named like a table, or if it is damaged, which DuckDB does not check.
    """
    paths = [Path(path) for path in tables]
    files = {path.stem: relation(path) for path in paths}
    for path in paths:
        if path.stem not in store.TABLES:
            raise LaminaError(
                f"{path}: there is no table '{path.stem}'. The tables are: {', '.join(store.TABLES)}."
            )
        store.metadata(path)
    for statement in duckdb.extract_statements(sql.views_text(views)):
        table = _TABLE_FILE.search(statement.query)
        if table is None:
            yield statement.query
        elif table[1] in files:
            yield statement.query.replace(table[0], files[table[1]])


def relation(file: Path) -> str:
    """A Parquet file in SQL: exactly this file, whatever its path would mean as a pattern or as a partition."""
    return f"read_parquet({_quoted(glob.escape(file.as_posix()))}, hive_partitioning = false)"


def connect(
    views: str | Path, tables: Iterable[str | Path], computed: Container[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Open the views of these Parquet files in memory, without comments. The `computed` views become tables, for
    callers that query them many times.

    No other file in their folder is read: a job that reads a table that is not among its inputs would race with the job
    that writes it. Views that need another table are left out, and a query on such a view fails.
    """
    connection = duckdb.connect()
    for statement in statements(views, tables):
        made = _DERIVED.search(statement)
        if made and made[1] in computed:
            statement = statement.replace(made[0], made[0].replace("VIEW", "TABLE"))
        # DuckDB knows what a view reads: one whose tables are not all there cannot be made.
        with suppress(duckdb.CatalogException):
            connection.execute(statement)
    return connection


def opened(file: str | Path) -> duckdb.DuckDBPyConnection:
    """The database of a run, opened for reading only.

    Raises LaminaError if there is no database, if another program writes to it, or if it is damaged.
    """
    if not Path(file).is_file():
        raise LaminaError(f"there is no {file} here. Run the study first: make run")
    try:
        connection = duckdb.connect(str(file), read_only=True)
        connection.execute("SELECT count(*) FROM models")
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) and "lock" in str(error):
            held = (
                f"{file} is held open for writing by another program. Close it there and try again."
            )
            raise LaminaError(held) from error
        raise checksum.damaged(file, str(error).splitlines()[0]) from error
    return connection


def build(
    views: str | Path, tables: Iterable[str | Path], output: str | Path, study: str = "study"
) -> None:
    """Keep the tables as those of `study`, and write the views of all studies into a database file.

    Raises LaminaError if a table has no file: the views of a file must all work.
    """
    files = [path for path in map(Path, tables) if path.exists()]
    missing = set(store.TABLES) - {path.stem for path in files}
    if missing:
        raise LaminaError(
            f"there is no {', '.join(f'{table}.parquet' for table in sorted(missing))} among the tables. "
            "Gather them first: snakemake report"
        )
    output, study = Path(output), f"{study}_" if study.lower() in _TAKEN else study
    kept = output.parent / "studies"
    _keep(files, kept / study)
    last = {
        folder.name: _numbers(folder)[-1] for folder in sorted(kept.iterdir()) if _numbers(folder)
    }
    _forget(output)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with duckdb.connect() as connection:
            connection.execute(
                f"ATTACH {_quoted(str(temporary))} AS output (STORAGE_VERSION '{STORAGE_VERSION}')"
            )
            connection.execute("USE output")
            connection.execute("BEGIN")
            for statement in statements(views, sorted((kept / study / str(last[study])).iterdir())):
                connection.execute(statement)
            describe(connection)
            connection.execute("COMMIT")
            for name, number in list(last.items()):
                connection.execute(f"CREATE SCHEMA {_identifier(name)}")
                connection.execute(f"USE output.{_identifier(name)}")
                try:
                    _create(connection, views, kept / name / str(number))
                except (LaminaError, duckdb.Error) as error:
                    if name == study:
                        raise
                    connection.execute("USE output.main")
                    connection.execute(f"DROP SCHEMA {_identifier(name)} CASCADE")
                    del last[name]
                    print(
                        f"lamina: study '{name}' is left out of {output}: {error}", file=sys.stderr
                    )
            connection.execute("BEGIN")
            connection.execute("CREATE SCHEMA studies")
            _unite(connection, last)
            connection.execute("COMMIT")
            connection.execute("USE memory")
            connection.execute("DETACH output")
        os.replace(temporary, output)
    finally:
        _forget(output)


def _forget(output: Path) -> None:
    """Remove the temporary files of this build and of killed builds."""
    for left in output.parent.glob(f".{glob.escape(output.name)}.*.tmp*"):
        left.unlink(missing_ok=True)


def _keep(files: Iterable[Path], folder: Path) -> None:
    """Link files into the folder's next number, or copy them if the disk has no links. Two numbers stay."""
    *older, number = [*_numbers(folder), _numbers(folder)[-1] + 1] if _numbers(folder) else [1]
    place = folder / str(number)
    place.mkdir(parents=True)
    for file in files:
        try:
            os.link(file, place / file.name)
        except OSError:
            shutil.copyfile(file, place / file.name)
    for old in older[:-1]:
        shutil.rmtree(folder / str(old))


def _numbers(folder: Path) -> list[int]:
    return (
        sorted(int(part.name) for part in folder.iterdir() if part.name.isdigit())
        if folder.is_dir()
        else []
    )


def _create(connection: duckdb.DuckDBPyConnection, views: str | Path, folder: Path) -> None:
    """Create the views of a folder's tables, except views that need a table or column that the folder lacks."""
    files = [file for file in folder.glob("*.parquet") if file.stem in store.TABLES]
    lacking = store.TABLES.keys() - {file.stem for file in files}
    for statement in statements(views, files):
        if made := re.search(
            r"^CREATE OR REPLACE VIEW (\w+).*", statement, re.MULTILINE | re.DOTALL
        ):
            try:
                # DuckDB would take a view that is not here from schema main, which is another study's.
                if lacking.isdisjoint(re.findall(r"\w+", made[0])):
                    connection.execute(statement)
                else:
                    lacking.add(made[1])
            except (duckdb.CatalogException, duckdb.BinderException):
                lacking.add(made[1])


def _unite(connection: duckdb.DuckDBPyConnection, every: Iterable[str]) -> None:
    """Create each view of schema `main` in schema `studies` too, over all studies, with its comments."""
    views = connection.execute(
        "SELECT schema_name, view_name, comment FROM duckdb_views() WHERE database_name = 'output' AND NOT internal"
    ).fetchall()
    columns = connection.execute(
        """SELECT table_name, column_name, comment FROM duckdb_columns()
        WHERE database_name = 'output' AND schema_name = 'main' AND NOT internal"""
    ).fetchall()
    known = {(schema, view) for schema, view, _ in views}
    for view, grain in [(view, grain) for schema, view, grain in views if schema == "main"]:
        parts = [
            f"SELECT {_quoted(name)} AS study, * FROM {_identifier(name)}.{view}"
            for name in every
            if (name, view) in known
        ]
        united = f"output.studies.{view}"
        connection.execute(f"CREATE VIEW {united} AS {' UNION ALL BY NAME '.join(parts)}")
        connection.execute(f"COMMENT ON VIEW {united} IS {_quoted(f'Of every study. {grain}')}")
        commented = [
            ("study", STUDY),
            *((column, comment) for table, column, comment in columns if table == view),
        ]
        for column, comment in commented:
            connection.execute(
                f"COMMENT ON COLUMN {united}.{_identifier(column)} IS {_quoted(comment)}"
            )


def describe(connection: duckdb.DuckDBPyConnection) -> None:
    """Comment the views of tables from their schemas, columns of metrics from their entries, and columns that a view
    hands on as the view they come from.

    A view that is not a table has comments beside its statement, for itself and for the columns that it adds.
    """
    known: dict[str, dict[str, str]] = {}
    for name, statement in connection.execute(
        "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY view_oid"
    ).fetchall():
        columns = connection.execute(
            "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ? AND NOT internal",
            [name],
        ).fetchall()
        if name in store.TABLES:
            connection.execute(f"COMMENT ON VIEW {name} IS {_quoted(store.TABLES[name].grain)}")
            given = {column: text for column, (_, text) in store.TABLES[name].columns.items()}
        else:
            read = [
                known.get(source, {})
                for source in re.findall(r'\b(?:FROM|JOIN) [("]*(\w+)', statement)
            ]
            given = {column: text for source in reversed(read) for column, text in source.items()}
            if "FOR (metric) IN" in statement:
                given |= {
                    metric: f"Relevance, high = relevant: {entry.help}."
                    for metric, entry in METRICS.items()
                }
        known[name] = {column: comment or given.get(column, "") for column, comment in columns}
        for column, comment in columns:
            if comment is None and column in given:
                connection.execute(
                    f"COMMENT ON COLUMN {name}.{_identifier(column)} IS {_quoted(given[column])}"
                )


def _quoted(text: str) -> str:
    """The text as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    """A quoted name of SQL, also of a file whose name holds quotes."""
    return '"' + name.replace('"', '""') + '"'

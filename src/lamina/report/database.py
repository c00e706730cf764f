"""The tables of a run in DuckDB with the views of `sql/*.sql`: over Parquet files in memory, or inside one file.

Jobs of a run ask in memory (`connect`). The file, `results/lamina.duckdb` (`build`), is what a run leaves to its user:
one file that can be sent to others and opened from any folder, by every DuckDB from 1.2 on. So it holds the rows of
every table and also of every derived view. (DuckDB 2 stores the SQL of a view in a form of which older versions read
some as another query: `k.* LIKE 'kept%'` as `k.*`, and a common table expression without its MATERIALIZED.)

Schema `main` of the file holds the last study. Every other study that was run in the folder has a schema of its own
name, for which its tables are kept as links in `studies/{study}/` beside the file. Schema `studies` holds the rows of
all studies with a column `study`.
"""

import glob
import os
import re
import shutil
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

import duckdb

from lamina.config.metrics import METRICS
from lamina.errors import LaminaError
from lamina.report import queries as sql
from lamina.store import checksum
from lamina.store import parquet as store

STORAGE_VERSION = "v1.2.0"  # by default DuckDB 2 writes files that no shell before it can open
BLOCK_SIZE = 16384  # bytes; every table takes one at least, and by default it is 16 times as large

STUDY = "The study: the name of the configuration file that the run was started with."

# Schemas that are there already. DuckDB takes names that differ only by case for one.
_TAKEN = ("main", "studies", "information_schema", "pg_catalog", "temp")

_ON_VIEW = re.compile(r"^(CREATE OR REPLACE|COMMENT ON) VIEW (\w+)", re.MULTILINE)


def connect(
    views: str | Path, tables: Iterable[str | Path], computed: Container[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Open the views of these Parquet files, `{table}.parquet` each, in memory and without comments.

    The `computed` views become tables, for callers that query them many times. No other file in the folder of the
    tables is read: a job that reads a table that is not among its inputs would race with the job that writes it. Views
    that need another table are left out, and a query on such a view fails.

    Raises LaminaError if a file is not named like a table, or if it is damaged, which DuckDB does not check.
    """
    connection = duckdb.connect()
    _add_tables(connection, tables, "VIEW")
    for statement in _statements(views):
        on_view = _ON_VIEW.search(statement)
        if on_view and on_view[2] in computed:
            statement = _as_table(statement)
        # DuckDB knows what a view reads: one whose tables are not all there cannot be made.
        with suppress(duckdb.CatalogException):
            connection.execute(statement)
    return connection


def relation(file: Path) -> str:
    """A Parquet file in SQL: exactly this file, whatever its path would mean as a pattern or as a partition."""
    return f"read_parquet({_quoted(glob.escape(file.as_posix()))}, hive_partitioning = false)"


def _add_tables(
    connection: duckdb.DuckDBPyConnection, files: Iterable[str | Path], kind: str
) -> None:
    """Create a TABLE with the rows of each file, or a VIEW of the file, in the schema in use."""
    for file in sorted(map(Path, files)):
        if file.stem not in store.TABLES:
            raise LaminaError(
                f"{file}: there is no table '{file.stem}'. The tables are: {', '.join(store.TABLES)}."
            )
        store.metadata(file)
        connection.execute(f"CREATE {kind} {file.stem} AS SELECT * FROM {relation(file)}")


def _statements(views: str | Path) -> list[str]:
    """The statements of the views file: macros, views and their comments."""
    return [statement.query for statement in duckdb.extract_statements(sql.views_text(views))]


def _as_table(statement: str) -> str:
    """The statement on a view as one on a table, which holds the rows of the view; other statements as they are."""
    return _ON_VIEW.sub(r"\1 TABLE \2", statement, count=1)


def open_database(file: str | Path) -> duckdb.DuckDBPyConnection:
    """The database of a run, opened for reading only.

    Raises LaminaError if there is no database, if another program writes to it, or if it is damaged.
    """
    if not Path(file).is_file():
        raise LaminaError(f"there is no {file} here. Run the study first: make run")
    try:
        connection = duckdb.connect(str(file), read_only=True)
        # An answer that is not fetched keeps the connection busy: the caller's `.sql` would fail.
        connection.execute("SELECT count(*) FROM models").fetchall()
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
    """Write a database file with the tables of `study`, those of other studies in the folder, and the views of all.

    Raises LaminaError if a table has no file: the views of a file must all work.
    """
    files = [path for path in map(Path, tables) if path.exists()]
    missing = set(store.TABLES) - {path.stem for path in files}
    if missing:
        raise LaminaError(
            f"there is no {', '.join(f'{table}.parquet' for table in sorted(missing))} among the tables. "
            "Gather them first: snakemake report"
        )
    output = Path(output)
    if study.lower() in _TAKEN:
        study = f"{study}_"
    kept_studies = output.parent / "studies"
    _keep(files, kept_studies / study)
    _forget(output)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with duckdb.connect() as connection:
            connection.execute(
                f"ATTACH {_quoted(str(temporary))} AS output (STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {BLOCK_SIZE})"
            )
            # Schema main comes last: a view that names a table that its study lacks would find that of main.
            others = _add_other_studies(connection, views, kept_studies, study)
            connection.execute("USE output.main")
            connection.execute("BEGIN")
            _add_tables(connection, files, "TABLE")
            for statement in _statements(views):
                connection.execute(_as_table(statement))
            _describe(connection, views)
            _unite(connection, study, others)
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
    """Make the folder hold these files and nothing else: as links, or as copies if the disk has no links."""
    incomplete = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(incomplete, ignore_errors=True)
    incomplete.mkdir(parents=True)
    for file in files:
        try:
            os.link(file, incomplete / file.name)
        except OSError:
            shutil.copyfile(file, incomplete / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    incomplete.rename(folder)


def _add_other_studies(
    connection: duckdb.DuckDBPyConnection, views: str | Path, folder: Path, study: str
) -> list[str]:
    """Create a schema for each kept study but `study`; one with a damaged table is left out with a warning."""
    others = []
    for kept in sorted(folder.iterdir()):
        files = [file for file in kept.glob("*.parquet") if file.stem in store.TABLES]
        if not files or kept.name == study or kept.name.startswith("."):
            continue
        schema = f"output.{_identifier(kept.name)}"
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"USE {schema}")
        try:
            _add_tables(connection, files, "TABLE")
        except (LaminaError, duckdb.Error) as error:
            connection.execute("USE output.main")
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
            print(
                f"lamina: study '{kept.name}' is left out of the database: {error}", file=sys.stderr
            )
            continue
        for statement in _statements(views):
            # A view of a table or column that an earlier version did not write.
            with suppress(duckdb.CatalogException, duckdb.BinderException):
                connection.execute(_as_table(statement))
        others.append(kept.name)
    return others


def _unite(connection: duckdb.DuckDBPyConnection, study: str, others: Iterable[str]) -> None:
    """Show schema `main` as that of its study too, and all studies together, with comments, in schema `studies`."""
    relations = connection.execute(
        "SELECT schema_name, table_name, comment FROM duckdb_tables() WHERE database_name = 'output'"
    ).fetchall()
    held = {(schema, table) for schema, table, _ in relations}
    columns = _column_comments(connection)
    connection.execute(f"CREATE SCHEMA {_identifier(study)}")
    connection.execute("CREATE SCHEMA studies")
    for schema, table, grain in relations:
        if schema != "main":
            continue
        parts = [f"SELECT {_quoted(study)} AS study, * FROM main.{table}"]
        for other in others:
            if (other, table) in held:
                parts.append(
                    f"SELECT {_quoted(other)} AS study, * FROM {_identifier(other)}.{table}"
                )
        united = f"studies.{table}"
        connection.execute(f"CREATE VIEW {_identifier(study)}.{table} AS FROM main.{table}")
        connection.execute(f"CREATE VIEW {united} AS {' UNION ALL BY NAME '.join(parts)}")
        connection.execute(f"COMMENT ON VIEW {united} IS {_quoted(f'Of every study. {grain}')}")
        for column, comment in {"study": STUDY, **columns[table]}.items():
            _comment_column(connection, united, column, comment or "")


def _describe(connection: duckdb.DuckDBPyConnection, views: str | Path) -> None:
    """Comment the tables of schema `main` and their columns, and the columns that a view hands on.

    Tables are described by their schemas. A view has comments beside its statement, for itself and for the columns that
    it adds. A column that it hands on is described as in the first table or view that its FROM and JOIN name and that
    has it, a column of a metric by the metric's entry.
    """
    columns = _column_comments(connection)
    known: dict[str, dict[str, str]] = {}
    for table, schema in store.TABLES.items():
        connection.execute(f"COMMENT ON TABLE {table} IS {_quoted(schema.grain)}")
        known[table] = {column: comment for column, (_, comment) in schema.columns.items()}
        for column, described in known[table].items():
            _comment_column(connection, table, column, described)
    for statement in _statements(views):
        created = _ON_VIEW.search(statement)
        if created is None or created[1] == "COMMENT ON":
            continue
        view = created[2]
        handed_on: dict[str, str] = {}
        for source in re.findall(r"\b(?:FROM|JOIN) \(*(?:FROM )?(\w+)", statement):
            handed_on = known.get(source, {}) | handed_on
        if "FOR metric IN" in statement:
            for metric, entry in METRICS.items():
                handed_on[metric] = f"Relevance, high = relevant: {entry.help}."
        known[view] = {}
        for column, comment in columns[view].items():
            known[view][column] = comment or handed_on.get(column, "")
            if comment is None and column in handed_on:
                _comment_column(connection, view, column, handed_on[column])


def _column_comments(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str | None]]:
    """The columns of each table of schema `main` with their comments."""
    comments: dict[str, dict[str, str | None]] = {}
    for table, column, comment in connection.execute(
        """SELECT table_name, column_name, comment FROM duckdb_columns()
        WHERE database_name = 'output' AND schema_name = 'main' ORDER BY table_name, column_index"""
    ).fetchall():
        comments.setdefault(table, {})[column] = comment
    return comments


def _comment_column(
    connection: duckdb.DuckDBPyConnection, table: str, column: str, comment: str
) -> None:
    connection.execute(f"COMMENT ON COLUMN {table}.{_identifier(column)} IS {_quoted(comment)}")


def _quoted(text: str) -> str:
    """The text as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    """A quoted name of SQL, also of a file whose name holds quotes."""
    return '"' + name.replace('"', '""') + '"'

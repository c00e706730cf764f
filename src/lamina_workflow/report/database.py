"""The tables of a run in DuckDB with the views of `sql/*.sql`: in memory, or inside one file.

Jobs of a run query Parquet files in memory (`connect_views`). The file, `results/lamina.duckdb`
(`build_database`), is what a run leaves to its user: one file that can be sent to others and opened
from any folder, by every DuckDB from 1.2 on. So it stores the rows of every table and of every
derived view. (DuckDB 2 stores the SQL of a view in a form that older versions read as another
query: `k.* LIKE 'kept%'` as `k.*`, and a common table expression without its MATERIALIZED.)

Schema `main` of the file holds the last study. Every other study that was run in the folder has a
schema of its own name; its tables are kept as links in `studies/{study}/` next to the file. Schema
`studies` holds the rows of all studies, with a column `study`.
"""

import glob
import os
import shutil
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

import duckdb

from lamina.errors import LaminaError
from lamina.store import checksum, parquet
from lamina_workflow.report import database_comments
from lamina_workflow.report.queries import read_view_statements
from lamina_workflow.report.statements import (
    find_subject_view,
    quote_identifier,
    quote_text,
    split_statements,
    turn_view_into_table,
)

STORAGE_VERSION = "v1.2.0"  # by default DuckDB 2 writes files that no shell before it can open
BLOCK_SIZE = 16384  # bytes; every table takes at least one; DuckDB's default is 16 times as large

# Schemas that every file has. DuckDB ignores the case of names.
_RESERVED_SCHEMAS = ("main", "studies", "information_schema", "pg_catalog", "temp")


def connect_views(
    tables: Iterable[str | Path], computed: Container[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Open the views of these Parquet files, `{table}.parquet` each, in memory without comments.

    The `computed` views become tables, for callers that query them many times. No other file in the
    folder of the tables is read: reading a table that is not a job's input would race with the job
    that writes it. Views that need a missing table are left out, and a query on such a view fails.

    Raises LaminaError if a file is not named like a table, or is damaged, which DuckDB does not
    check.
    """
    connection = duckdb.connect()
    _add_tables(connection, tables, "VIEW")
    for statement in split_statements(read_view_statements()):
        if find_subject_view(statement) in computed:
            statement = turn_view_into_table(statement)
        # DuckDB refuses to create a view of which a table is missing.
        with suppress(duckdb.CatalogException):
            connection.execute(statement)
    return connection


def quote_relation(file: Path) -> str:
    """A Parquet file in SQL: exactly this file, even if its path looks like a pattern."""
    return f"read_parquet({quote_text(glob.escape(file.as_posix()))}, hive_partitioning = false)"


def _add_tables(
    connection: duckdb.DuckDBPyConnection, files: Iterable[str | Path], kind: str
) -> None:
    """Create a TABLE with the rows of each file, or a VIEW of the file, in the schema in use."""
    for file in sorted(map(Path, files)):
        if file.stem not in parquet.TABLES:
            raise LaminaError(
                f"{file}: there is no table '{file.stem}'. The tables are: "
                f"{', '.join(parquet.TABLES)}."
            )
        parquet.read_metadata(file)  # refuses a damaged file
        connection.execute(f"CREATE {kind} {file.stem} AS SELECT * FROM {quote_relation(file)}")


def open_database(file: str | Path) -> duckdb.DuckDBPyConnection:
    """The database of a run, opened for reading only.

    Raises LaminaError if there is no database, if another program writes to it, or if it is
    damaged.
    """
    if not Path(file).is_file():
        raise LaminaError(f"there is no {file} here. Run the study first: lamina run")
    try:
        connection = duckdb.connect(str(file), read_only=True)
        # An answer that is not fetched keeps the connection busy: the caller's `.sql` would fail.
        connection.execute("SELECT count(*) FROM models").fetchall()
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) and "lock" in str(error):
            raise LaminaError(
                f"{file} is held open for writing by another program. Close it there and try again."
            ) from error
        raise checksum.damaged_file(file, str(error).splitlines()[0]) from error
    return connection


def build_database(tables: Iterable[str | Path], output: str | Path, study: str = "study") -> None:
    """Write a database file with this study, other studies in the folder, and the views of each.

    Raises LaminaError if a table has no file: the views of a file must all work.
    """
    table_files = [path for path in map(Path, tables) if path.exists()]
    missing_tables = set(parquet.TABLES) - {path.stem for path in table_files}
    if missing_tables:
        missing_files = ", ".join(f"{table}.parquet" for table in sorted(missing_tables))
        raise LaminaError(
            f"there is no {missing_files} among the tables. Gather them first: snakemake report"
        )
    output = Path(output)
    if study.lower() in _RESERVED_SCHEMAS:
        study = f"{study}_"
    studies_folder = output.parent / "studies"
    _keep_tables(table_files, studies_folder / study)
    _remove_temporary_files(output)
    temporary_file = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with duckdb.connect() as connection:
            DatabaseWriter(connection, study).write(temporary_file, table_files, studies_folder)
        os.replace(temporary_file, output)
    finally:
        _remove_temporary_files(output)


def _remove_temporary_files(output: Path) -> None:
    """Remove the temporary files of this build and of killed builds."""
    for file in output.parent.glob(f".{glob.escape(output.name)}.*.tmp*"):
        file.unlink(missing_ok=True)


def _keep_tables(files: Iterable[Path], folder: Path) -> None:
    """Make the folder hold exactly these files: as links, or as copies if the disk has no links."""
    incomplete_folder = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(incomplete_folder, ignore_errors=True)
    incomplete_folder.mkdir(parents=True)
    for file in files:
        try:
            os.link(file, incomplete_folder / file.name)
        except OSError:
            shutil.copyfile(file, incomplete_folder / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    incomplete_folder.rename(folder)


class DatabaseWriter:
    """Fills a database file, which it attaches as `output`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, study: str) -> None:
        self.connection = connection
        self.statements = split_statements(read_view_statements())
        self.study = study

    def write(self, file: Path, tables: Iterable[Path], studies_folder: Path) -> None:
        """Write this study from its tables, and the other studies from their kept tables."""
        self.connection.execute(
            f"ATTACH {quote_text(str(file))} AS output "
            f"(STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {BLOCK_SIZE})"
        )
        # Schema main comes last: a view of a study that lacks a table would find the table of main.
        other_studies = self._add_other_studies(studies_folder)
        self.connection.execute("USE output.main")
        self.connection.execute("BEGIN")
        _add_tables(self.connection, tables, "TABLE")
        for statement in self.statements:
            self.connection.execute(turn_view_into_table(statement))
        database_comments.describe_tables(self.connection, self.statements)
        self._unite_studies(other_studies)
        self.connection.execute("COMMIT")
        self.connection.execute("USE memory")
        self.connection.execute("DETACH output")

    def _add_other_studies(self, studies_folder: Path) -> list[str]:
        """Create a schema for each other study, except those with a damaged table."""
        added = []
        for folder in sorted(studies_folder.iterdir()):
            files = [file for file in folder.glob("*.parquet") if file.stem in parquet.TABLES]
            is_other = folder.name != self.study and not folder.name.startswith(".")
            if files and is_other and self._add_study(folder.name, files):
                added.append(folder.name)
        return added

    def _add_study(self, study: str, files: list[Path]) -> bool:
        schema = f"output.{quote_identifier(study)}"
        self.connection.execute(f"CREATE SCHEMA {schema}")
        self.connection.execute(f"USE {schema}")
        try:
            _add_tables(self.connection, files, "TABLE")
        except (LaminaError, duckdb.Error) as error:
            self.connection.execute("USE output.main")
            self.connection.execute(f"DROP SCHEMA {schema} CASCADE")
            print(f"lamina: study '{study}' is left out of the database: {error}", file=sys.stderr)
            return False
        for statement in self.statements:
            # An earlier version of lamina may not have written a table or column that a view needs.
            with suppress(duckdb.CatalogException, duckdb.BinderException):
                self.connection.execute(turn_view_into_table(statement))
        return True

    def _unite_studies(self, other_studies: Iterable[str]) -> None:
        """Show schema `main` under its study's name too, and all studies in schema `studies`."""
        table_rows = self.connection.execute(
            "SELECT schema_name, table_name, comment FROM duckdb_tables() "
            "WHERE database_name = 'output'"
        ).fetchall()
        existing_tables = {(schema, table) for schema, table, _ in table_rows}
        column_comments = database_comments.read_column_comments(self.connection)
        own_schema = quote_identifier(self.study)
        self.connection.execute(f"CREATE SCHEMA {own_schema}")
        self.connection.execute("CREATE SCHEMA studies")
        for schema, table, grain in table_rows:
            if schema != "main":
                continue
            select_statements = [f"SELECT {quote_text(self.study)} AS study, * FROM main.{table}"]
            for study in other_studies:
                if (study, table) in existing_tables:
                    select_statements.append(
                        f"SELECT {quote_text(study)} AS study, * "
                        f"FROM {quote_identifier(study)}.{table}"
                    )
            self.connection.execute(f"CREATE VIEW {own_schema}.{table} AS FROM main.{table}")
            self.connection.execute(
                f"CREATE VIEW studies.{table} AS {' UNION ALL BY NAME '.join(select_statements)}"
            )
            database_comments.describe_united_view(
                self.connection, table, grain, column_comments[table]
            )

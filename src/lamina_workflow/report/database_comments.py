"""The comments of a database file: what a row of each table is, and what its columns mean.

Tables are described by their schemas. A view has comments next to its statement, for itself and for
the columns that it adds. A column that it passes on takes its description from the first table or
view in its FROM and JOIN that has it; a column of a metric, from the metric's help.
"""

import re
from collections.abc import Iterable, Mapping

import duckdb

from lamina.options.metrics import METRICS
from lamina.store.parquet import TABLES
from lamina_workflow.report.statements import find_created_view, quote_identifier, quote_text

STUDY_COLUMN = "The study: the name of the configuration file that the run was started with."

_SOURCE = re.compile(r"\b(?:FROM|JOIN) \(*(?:FROM )?(\w+)")


def describe_tables(connection: duckdb.DuckDBPyConnection, statements: Iterable[str]) -> None:
    """Comment the tables of schema `main` and their columns, and the columns that views pass on.

    statements: those of the views file, already executed, with the views' own comments
    """
    column_comments = read_column_comments(connection)
    descriptions: dict[str, dict[str, str]] = {}
    for table, schema in TABLES.items():
        connection.execute(f"COMMENT ON TABLE {table} IS {quote_text(schema.grain)}")
        descriptions[table] = {
            column: description for column, (_, description) in schema.columns.items()
        }
        for column, description in descriptions[table].items():
            _comment_column(connection, table, column, description)

    for statement in statements:
        view = find_created_view(statement)
        if view is None:
            continue
        passed_on = _describe_sources(statement, descriptions)
        descriptions[view] = {}
        for column, comment in column_comments[view].items():
            descriptions[view][column] = comment or passed_on.get(column, "")
            if comment is None and column in passed_on:
                _comment_column(connection, view, column, passed_on[column])


def _describe_sources(
    statement: str, descriptions: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The columns of the tables and views that a view reads; those of the first source win."""
    passed_on: dict[str, str] = {}
    for source in _SOURCE.findall(statement):
        passed_on = {**descriptions.get(source, {}), **passed_on}
    if "FOR metric IN" in statement:
        for metric, entry in METRICS.items():
            passed_on[metric] = f"Relevance, high = relevant: {entry.help}."
    return passed_on


def describe_united_view(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    grain: str,
    column_comments: Mapping[str, str | None],
) -> None:
    """Comment the view of schema `studies` that holds a table of every study."""
    view = f"studies.{table}"
    connection.execute(f"COMMENT ON VIEW {view} IS {quote_text(f'Of every study. {grain}')}")
    _comment_column(connection, view, "study", STUDY_COLUMN)
    for column, comment in column_comments.items():
        _comment_column(connection, view, column, comment or "")


def read_column_comments(
    connection: duckdb.DuckDBPyConnection,
) -> dict[str, dict[str, str | None]]:
    """The comment of each column of each table of schema `main`."""
    columns = connection.execute(
        """SELECT table_name, column_name, comment FROM duckdb_columns()
        WHERE database_name = 'output' AND schema_name = 'main'
        ORDER BY table_name, column_index"""
    ).fetchall()
    comments: dict[str, dict[str, str | None]] = {}
    for table, column, comment in columns:
        comments.setdefault(table, {})[column] = comment
    return comments


def _comment_column(
    connection: duckdb.DuckDBPyConnection, table: str, column: str, comment: str
) -> None:
    connection.execute(
        f"COMMENT ON COLUMN {table}.{quote_identifier(column)} IS {quote_text(comment)}"
    )

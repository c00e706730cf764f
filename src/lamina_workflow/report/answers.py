"""Return DuckDB's answers as Python rows, for the questions of `sql/queries` and other queries."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from lamina_workflow.report.queries import read_query

# The share that a variant keeps, whether it is enough and certain, and the variant's rank.
RECOMMENDED = "which_model_to_take"


def answer_question(
    connection: duckdb.DuckDBPyConnection, question: str, **variables: Any
) -> list[dict[str, Any]]:
    """The answer to a question of `sql/queries`, which declares its variables and defaults."""
    with _variables_set(connection, variables):
        return query_rows(connection, read_query(question))


def answer_table(
    connection: duckdb.DuckDBPyConnection, question: str, **variables: Any
) -> pa.Table:
    """The same answer as a table, for long answers."""
    with _variables_set(connection, variables):
        return connection.sql(read_query(question)).to_arrow_table()


def recommendations(
    connection: duckdb.DuckDBPyConnection,
    keep: float,
    general_text: float | None,
    counted_from: str = "zero",
    allowed: list[str] | None = None,
) -> list[dict[str, Any]]:
    """The smallest variant that keeps enough: one for each task, and over all of them.

    If none does, the nearest one, with `kept_enough` false.

    keep: share of the base model's score that must be left, above 0 to 1
    general_text: highest perplexity of general text, as a multiple of the base model's; None allows
        anything
    counted_from: `zero`, or `chance`: what the share is counted from
    allowed: names of the variants that may be recommended; None allows all
    """
    return answer_question(
        connection,
        RECOMMENDED,
        keep=keep,
        general_text=general_text,
        counted_from=counted_from,
        allowed=allowed,
    )


def query_rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The answer to `query` as a list of mappings from column to value."""
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def group_rows(data: Iterable[Mapping[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[Any]]:
    """Rows by the values of some columns, in the order of their first rows."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in data:
        values = tuple(row[key] for key in keys)
        groups.setdefault(values, []).append(row)
    return groups


def as_csv(data: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV text, with the columns of the first row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, data[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(data)
    return text.getvalue()


@contextmanager
def _variables_set(
    connection: duckdb.DuckDBPyConnection, variables: dict[str, Any]
) -> Iterator[None]:
    """Set SQL variables while the context is open."""
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = $value", {"value": value})
    try:
        yield
    finally:
        for name in variables:
            connection.execute(f"RESET VARIABLE {name}")

"""Answers of DuckDB as rows of Python, to the questions of `sql/queries` and to other queries."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from lamina.report.queries import query_text

# What a variant keeps, whether that is enough and certain, and its place among all that answer.
RECOMMENDED = "which_model_to_take"


def answer(
    connection: duckdb.DuckDBPyConnection, question: str, **variables: Any
) -> list[dict[str, Any]]:
    """Answer to a question of `sql/queries`. The question declares its variables and their defaults."""
    with _given(connection, variables):
        return rows(connection, query_text(question))


def answer_table(
    connection: duckdb.DuckDBPyConnection, question: str, **variables: Any
) -> pa.Table:
    """The same answer as a table, for long answers."""
    with _given(connection, variables):
        return connection.sql(query_text(question)).to_arrow_table()


def recommendations(
    connection: duckdb.DuckDBPyConnection,
    keep: float,
    general_text: float | None,
    counted_from: str = "zero",
    repairs: list[str] | None = None,
) -> list[dict[str, Any]]:
    """One row per question, for each task and over all of them: the smallest variant that keeps enough, or the nearest
    one if none does (`kept_enough` false).

    keep: share of the base model's number that must be left, above 0 to 1
    general_text: most that the perplexity of general text may be, times the base model's; None allows anything
    counted_from: `zero`, or `chance`: what the share is counted from
    repairs: those that come into question, `none` for variants without one; None allows all
    """
    asked = {
        "keep": keep,
        "general_text": general_text,
        "counted_from": counted_from,
        "repairs": repairs,
    }
    return answer(connection, RECOMMENDED, **asked)


def rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """Answer of `query` as a list of mappings from column to value."""
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def grouped(data: Iterable[Mapping[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[Any]]:
    """Rows by the values of some columns, in the order of their first rows."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in data:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def as_csv(answered: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the text of a CSV file, with the columns of the first one."""
    text = io.StringIO()
    table = csv.DictWriter(text, answered[0], lineterminator="\n")
    table.writeheader()
    table.writerows(answered)
    return text.getvalue()


@contextmanager
def _given(connection: duckdb.DuckDBPyConnection, variables: dict[str, Any]) -> Iterator[None]:
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = $value", {"value": value})
    try:
        yield
    finally:
        for name in variables:
            connection.execute(f"RESET VARIABLE {name}")

"""Answers of DuckDB as rows that Python reads."""

from typing import Any

import duckdb


def rows(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Answer of `query` as a list of mappings from column to value."""
    answer = connection.execute(query, parameters or {})
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

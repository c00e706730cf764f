"""Handle SQL statements as text: find what they create, and quote names and strings."""

import re

import duckdb

_VIEW_STATEMENT = re.compile(r"^(CREATE OR REPLACE|COMMENT ON) VIEW (\w+)", re.MULTILINE)
_CREATED_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+)", re.MULTILINE)


def split_statements(text: str) -> list[str]:
    """The statements of a text; in a views file, these are macros, views and their comments."""
    return [statement.query for statement in duckdb.extract_statements(text)]


def find_created_view(statement: str) -> str | None:
    """The view that a statement creates; None if it creates none."""
    match = _CREATED_VIEW.search(statement)
    return match[1] if match else None


def find_subject_view(statement: str) -> str | None:
    """The view that a statement creates or comments on; None if it does neither."""
    match = _VIEW_STATEMENT.search(statement)
    return match[2] if match else None


def turn_view_into_table(statement: str) -> str:
    """Turn a statement on a view into one on a table with its rows; others are unchanged."""
    return _VIEW_STATEMENT.sub(r"\1 TABLE \2", statement, count=1)


def quote_text(text: str) -> str:
    """The text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """A quoted SQL name; also works for a file whose name contains quotes."""
    return '"' + name.replace('"', '""') + '"'

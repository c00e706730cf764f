"""Statements of SQL as text: what a statement creates, and names and strings in quotes."""

import re

import duckdb

_VIEW_STATEMENT = re.compile(r"^(CREATE OR REPLACE|COMMENT ON) VIEW (\w+)", re.MULTILINE)
_CREATED_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+)", re.MULTILINE)


def split_statements(text: str) -> list[str]:
    """The statements of a text; of a views file macros, views and their comments."""
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
    """A statement on a view as one on a table with the view's rows; others stay as they are."""
    return _VIEW_STATEMENT.sub(r"\1 TABLE \2", statement, count=1)


def quote_text(text: str) -> str:
    """The text as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """A quoted name of SQL, also of a file whose name contains quotes."""
    return '"' + name.replace('"', '""') + '"'

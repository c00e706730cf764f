"""Questions to a run: `python -m lamina.report.shell` opens a shell on `results/lamina.duckdb`; `… NAME` asks one.

NAME is a file of `sql/queries` (without .sql) or any other file. The shell is the duckdb command if it is installed.
`python -m lamina.report.shell --page results > docs/queries.md` writes all questions with the answers of a run.
"""

import os
import readline  # noqa: F401, gives input() its history and arrow keys
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from lamina.config.explain import nearest
from lamina.errors import LaminaError, explained
from lamina.report import database
from lamina.report import queries as sql
from lamina.store import checksum as seal
from lamina.study import paths

DATABASE, QUERIES = "results/lamina.duckdb", Path("sql/queries")
MOST = 8  # rows of an answer on the page
HELP = "End a query with ;   .tables lists the views   .queries lists questions   .query NAME answers one   .quit ends"
INTRODUCTION = """\
# Questions and answers

Each question is a file in `sql/queries/`. `make query Q=name` prints the answer of the last run, `make sql` opens a
shell for questions of your own ([what the tables hold](tables.md)); both may be used while a run writes. The answers
below are those of the default study (`make run`), numbers rounded, at most the first {most} rows. This page is written
by `python -m lamina.report.shell --page results`.
"""


def connect(file: str | Path = DATABASE) -> duckdb.DuckDBPyConnection:
    """The database of a run, opened for reading only.

    Raises
    ------
    LaminaError
        If there is no database, or if it is damaged.
    """
    if not Path(file).is_file():
        raise LaminaError(f"there is no {file} here. Run the study first: make run")
    try:
        connection = duckdb.connect(str(file), read_only=True)
        connection.execute("SELECT count(*) FROM models")
    except duckdb.Error as error:
        raise seal.damaged(file, str(error).splitlines()[0]) from error
    return connection


def query(name: str, folder: Path = QUERIES) -> Path:
    """The file of a question.

    Raises
    ------
    LaminaError
        If there is no question of that name. The message names the nearest one.
    """
    known = sorted(path.stem for path in folder.glob("*.sql"))
    if name in known:
        return folder / f"{name}.sql"
    if Path(name).is_file():
        return Path(name)
    raise LaminaError(f"there is no question '{name}'. {nearest(name, known)} Write: make query Q=NAME")


def ask(connection: duckdb.DuckDBPyConnection, question: str) -> tuple[list[str], list[list[str]]]:
    """Names of the columns of an answer, and its rows as readable text.

    Raises
    ------
    LaminaError
        If DuckDB refuses the query. The message is that of DuckDB.
    """
    try:
        answer = connection.execute(question)
        names = [column[0] for column in answer.description or []]
        return names, [[shown(value) for value in row] for row in answer.fetchall()]
    except duckdb.Error as error:
        raise LaminaError(str(error)) from error


def shown(value: Any) -> str:
    """A value with at most four significant digits; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "[" + ", ".join(map(shown, value)) + "]" if isinstance(value, list) else str(value)


def aligned(names: Sequence[str], answer: Sequence[Sequence[str]]) -> str:
    """A table as text, and the number of its rows."""
    widths = [max(len(cell) for cell in column) for column in zip(names, *answer, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [names, *answer]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines) + f"\n({len(answer)} rows)"


def answered(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """The answer as text; if it has no rows, with the reason that its question gives."""
    names, answer = ask(connection, text)
    reason = "" if answer else sql.why_empty(text)
    return "\n".join(filter(None, [aligned(names, answer), reason]))


def page(connection: duckdb.DuckDBPyConnection, folder: Path = QUERIES) -> str:
    """All questions with their answers, in Markdown. A question without an answer in this run has the reason
    instead.
    """
    text = INTRODUCTION.format(most=MOST)
    for path in sorted(folder.glob("*.sql")):
        question = path.read_text(encoding="utf-8")
        said = [line.removeprefix("--").strip() for line in question.splitlines() if line.startswith("--")]
        notes = [line for line in said[1:] if line and not line.startswith("duckdb ")]
        text += f"\n## {said[0]}\n\n`make query Q={path.stem}`\n\n```text\n" + "\n".join(notes) + "\n```\n\n"
        try:
            names, answer = ask(connection, question)
        except LaminaError:
            text += "*This run has none of its tables.*\n"
            continue
        cells = [[cell.replace("|", "\\|") for cell in row] for row in [names, ["---"] * len(names), *answer[:MOST]]]
        text += "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"
        text += f"\n{len(answer)} rows in all.\n" if len(answer) > MOST else ""
    return text


def converse(connection: duckdb.DuckDBPyConnection) -> None:
    """Read queries from standard input and answer them, until its end or `.quit`."""
    at_a_terminal = sys.stdin.isatty()
    if at_a_terminal:
        print(HELP)
    begun = ""
    while True:
        try:
            line = input(("     -> " if begun else "lamina> ") if at_a_terminal else "")
        except EOFError:
            # A script may leave out its last semicolon, and ends with its first error.
            if begun:
                print(_answer(connection, begun))
            return
        except KeyboardInterrupt:
            begun = ""
            print()
            continue
        begun = f"{begun}\n{line}".strip()
        if begun == ".quit":
            return
        if begun and (begun.startswith(".") or begun.endswith(";")):
            try:
                print(_answer(connection, begun))
            except LaminaError as error:
                if not at_a_terminal:
                    raise
                print(error)
            begun = ""


def _answer(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    word, _, rest = text.partition(" ")
    if word == ".queries":
        return "\n".join(sorted(path.stem for path in QUERIES.glob("*.sql")))
    if word == ".tables":
        text = "SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal ORDER BY ALL"
    elif word == ".query":
        text = query(rest.strip()).read_text(encoding="utf-8")
    elif word.startswith("."):
        return HELP
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error:
        return answered(connection, text)  # which says what is wrong
    if len(statements) > 1:
        return "\n".join(answered(connection, each.query) for each in statements)
    return answered(connection, text)


def main(arguments: list[str]) -> None:
    """Open a shell, or answer the named questions."""
    with explained():
        if arguments[:1] == ["--page"]:
            tables = sorted(Path(arguments[1] if arguments[1:] else "results", "tables").glob("*.parquet"))
            print(page(database.connect(paths.VIEWS, tables)), end="")
            return
        files = [query(name).read_text(encoding="utf-8") for name in arguments]
        with connect() as connection:
            for text in files:
                print(answered(connection, text))
            if files:
                return
            if command := shutil.which("duckdb"):
                connection.close()
                os.execv(command, [command, "-readonly", DATABASE])
            converse(connection)


if __name__ == "__main__":
    main(sys.argv[1:])

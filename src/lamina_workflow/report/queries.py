"""Find lamina's SQL by name: the views, and the queries that answer questions.

A query is a file of `sql/queries`. It begins with a comment: the question, then the meaning of its
columns. A line `-- Empty …` says when the query has no answer.
"""

import re
from pathlib import Path

from lamina import paths
from lamina.options.metrics import METRICS

_PUBLISHED = "config/papers/expected.csv"
_METRIC_PIVOT = re.compile(r"(FOR metric IN \()([^)]*)(\))")
_READ_COMMAND = re.compile(r"^\.read (\S+)$", re.MULTILINE)  # of DuckDB's shell
_EMPTY_PREFIX = "-- Empty "


def list_view_files() -> list[str]:
    """The views file and the files that it reads, in order."""
    views = _locate_views()
    return [str(views), *map(str, _find_included_files(views).values())]


def read_view_statements() -> str:
    """All statements of the views file, with the files that it reads inserted.

    The file names two metrics whose scores other views read; the returned text has every metric.
    """
    views = _locate_views()
    included = {
        name: file.read_text(encoding="utf-8") for name, file in _find_included_files(views).items()
    }
    text = views.read_text(encoding="utf-8")
    text = _READ_COMMAND.sub(lambda command: included[command[1]], text)
    metrics = ", ".join(f"'{metric}'" for metric in METRICS)
    return _METRIC_PIVOT.sub(lambda pivot: f"{pivot[1]}{metrics}{pivot[3]}", text)


def _locate_views() -> Path:
    return Path(paths.locate("sql/views.sql"))


def _find_included_files(views: Path) -> dict[str, Path]:
    """The files that the views file reads, by their paths relative to the project's folder."""
    names = _READ_COMMAND.findall(views.read_text(encoding="utf-8"))
    return {name: views.parents[1] / name for name in names}


def locate_query(name: str) -> str:
    """The path of the file of a query."""
    return paths.locate(f"sql/queries/{name}.sql")


def read_query(name: str) -> str:
    """The SQL of a query."""
    return read_query_file(Path(locate_query(name)))


def read_query_file(file: Path) -> str:
    """The SQL in a file, with the path of papers' numbers adjusted to lamina's installation."""
    return file.read_text(encoding="utf-8").replace(_PUBLISHED, paths.locate(_PUBLISHED))


def list_questions() -> list[str]:
    """A line for each question: its name and its text."""
    names = sorted(file.stem for file in Path(paths.locate("sql/queries")).glob("*.sql"))
    width = max(map(len, names))
    return [f"{name:<{width}}  {list_comment_lines(read_query(name))[0]}" for name in names]


def list_comment_lines(query: str) -> list[str]:
    """The comment of a query: the question, then the meaning of its columns."""
    comments = [line for line in query.splitlines() if line.startswith("--")]
    lines = [comment.removeprefix("--").strip() for comment in comments]
    return [line for line in lines if line and not line.startswith("duckdb ")]


def explain_empty_answer(query: str) -> str:
    """The line `Empty …` of a query, which says when it has no answer; empty without one."""
    for line in query.splitlines():
        if line.startswith(_EMPTY_PREFIX):
            return line.removeprefix("-- ")
    return ""

"""The SQL of lamina by name: the files of the views, and the queries that answer questions.

A query is a file of `sql/queries`. It begins with a comment: the question, then what its columns
hold. A line `-- Empty …` of it says when it has no answer.
"""

import re
from pathlib import Path

from lamina import paths
from lamina.options.metrics import METRICS

_PUBLISHED = "config/papers/expected.csv"
_METRIC_PIVOT = re.compile(r"(FOR metric IN \()([^)]*)(\))")
_READ_COMMAND = re.compile(r"^\.read (\S+)$", re.MULTILINE)  # of the shell of DuckDB
_EMPTY_PREFIX = "-- Empty "


def list_view_files(views: str | Path = paths.VIEWS) -> list[str]:
    """The views file and those that it reads, in their order."""
    return [str(views), *map(str, _find_included_files(Path(views)).values())]


def read_view_statements(views: str | Path = paths.VIEWS) -> str:
    """All statements of the views file, with those of other files where it reads them.

    The file names two metrics whose scores other views read; the text has every metric there.
    """
    included = {
        name: file.read_text(encoding="utf-8")
        for name, file in _find_included_files(Path(views)).items()
    }
    text = Path(views).read_text(encoding="utf-8")
    text = _READ_COMMAND.sub(lambda command: included[command[1]], text)
    metrics = ", ".join(f"'{metric}'" for metric in METRICS)
    return _METRIC_PIVOT.sub(lambda pivot: f"{pivot[1]}{metrics}{pivot[3]}", text)


def _find_included_files(views: Path) -> dict[str, Path]:
    """The files that the views file reads, by their paths from the project's folder."""
    names = _READ_COMMAND.findall(views.read_text(encoding="utf-8"))
    return {name: views.parents[1] / name for name in names}


def locate_query(name: str) -> str:
    """The path of the file of a query."""
    return paths.locate(f"sql/queries/{name}.sql")


def read_query(name: str) -> str:
    """The SQL of a query."""
    return read_query_file(Path(locate_query(name)))


def read_query_file(file: Path) -> str:
    """The SQL in a file; it reads the numbers of papers from wherever lamina is installed."""
    return file.read_text(encoding="utf-8").replace(_PUBLISHED, paths.locate(_PUBLISHED))


def list_questions() -> list[str]:
    """A line for each question: its name, and what it asks."""
    names = sorted(file.stem for file in Path(paths.locate("sql/queries")).glob("*.sql"))
    width = max(map(len, names))
    return [f"{name:<{width}}  {list_comment_lines(read_query(name))[0]}" for name in names]


def list_comment_lines(query: str) -> list[str]:
    """The comment of a query: the question, then what its columns hold."""
    comments = [line for line in query.splitlines() if line.startswith("--")]
    lines = [comment.removeprefix("--").strip() for comment in comments]
    return [line for line in lines if line and not line.startswith("duckdb ")]


def explain_empty_answer(query: str) -> str:
    """The line `Empty …` of a query, which says when it has no answer; empty if it has none."""
    for line in query.splitlines():
        if line.startswith(_EMPTY_PREFIX):
            return line.removeprefix("-- ")
    return ""

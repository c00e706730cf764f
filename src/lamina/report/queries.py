"""The SQL of lamina by name: the files of the views, and the questions of `sql/queries` that a report answers.

A question begins with what it asks. A line `-- Empty …` in it says when it has no answer.
"""

import re
from pathlib import Path

from lamina.config.metrics import METRICS
from lamina.study import paths

_PUBLISHED = "config/papers/expected.csv"
_PIVOT = re.compile(r"(FOR metric IN \()([^)]*)(\))")
_READ = re.compile(r"^\.read (\S+)$", re.MULTILINE)  # as the shell of DuckDB has it


def views(file: str | Path = paths.VIEWS) -> list[str]:
    """The views file and those that it reads, in their order."""
    return [str(file), *map(str, _parts(Path(file)).values())]


def views_text(file: str | Path = paths.VIEWS) -> str:
    """All statements of the views file, with those of other files in the places where it reads them, and every metric
    in the place of those two whose scores other views read.
    """
    parts = {name: part.read_text(encoding="utf-8") for name, part in _parts(Path(file)).items()}
    text = _READ.sub(lambda line: parts[line[1]], Path(file).read_text(encoding="utf-8"))
    every = ", ".join(f"'{metric}'" for metric in METRICS)
    return _PIVOT.sub(lambda found: f"{found[1]}{every}{found[3]}", text)


def _parts(file: Path) -> dict[str, Path]:
    """The files that the views file reads, by their paths from the project's folder, as it writes them."""
    return {
        name: file.parents[1] / name for name in _READ.findall(file.read_text(encoding="utf-8"))
    }


def query(name: str) -> str:
    """The file of a question."""
    return paths.own(f"sql/queries/{name}.sql")


def query_text(name: str) -> str:
    """The SQL of a question."""
    return text_of(Path(query(name)))


def text_of(file: Path) -> str:
    """The SQL in a file, which reads the numbers of papers from wherever lamina is."""
    return file.read_text(encoding="utf-8").replace(_PUBLISHED, paths.own(_PUBLISHED))


def comments(question: str) -> list[str]:
    """The lines of a question's comment: the question itself, then what its columns hold."""
    lines = [
        line.removeprefix("--").strip() for line in question.splitlines() if line.startswith("--")
    ]
    return [line for line in lines if line and not line.startswith("duckdb ")]


def why_empty(text: str) -> str:
    """The line `-- Empty …` of a question, which says when it has no answer."""
    return next(
        (line.removeprefix("-- ") for line in text.splitlines() if line.startswith("-- Empty ")), ""
    )

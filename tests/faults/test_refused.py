"""What would hang or end without a name is refused before there is a graph: message, file, remedy."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import study
from tests.pipeline.project import Project

pytestmark = pytest.mark.slow

LISTS = "a0: &a0 [x, y]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))
MAPPINGS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{l: *a{n}, r: *a{n}}}\n" for n in range(40)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(40)
)


def text(file: str, content: str | bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def pipe(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change


# What is done to the files of a project, and what is said of it.
REFUSED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "aliases of lists without end": (
        text(study.CONFIG, LISTS),
        "faults.yaml",
        "without the aliases",
    ),
    "aliases of mappings without end": (
        text(study.CONFIG, MAPPINGS),
        "faults.yaml",
        "without the aliases",
    ),
    "merged mappings without end": (
        text(study.CONFIG, MERGED),
        "faults.yaml",
        "without the aliases",
    ),
    "an alias inside of what it means": (
        text(study.CONFIG, "a: &a [*a]"),
        "faults.yaml",
        "Write the value itself",
    ),
    "JSON without end": (text(study.CONFIG, '{"a":' * 50_000), "faults.yaml", "Write it flatter"),
    "bytes that are no text": (
        text(study.CONFIG, b"\0\xff" * 99),
        "faults.yaml",
        "Save the file as UTF-8",
    ),
    "a pipe": (pipe(study.CONFIG), "faults.yaml", "no configuration file"),
    "a model in a pipe": (pipe("model/config.json"), "model", "config.json"),
    "a function without a name": (
        text("workflow/tasks/asked.yaml", f"{study.TASK}process_docs: !function\n"),
        "asked.yaml",
        "Write `!function module.function`",
    ),
    "questions cut off": (
        text("data/own.jsonl", '{"query": "a", "cho'),
        "own.jsonl, line 1",
        "Write one JSON object",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_file_and_the_remedy(name: str, tmp_path: Path) -> None:
    project: Project = study.made(tmp_path / "study")
    change, file, remedy = REFUSED[name]
    change(project.folder)
    done = project.run("-n", check=False)
    said = done.stdout.splitlines()[-1]
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert said.startswith("lamina: ") and file in said and remedy in said, done.stdout[-2000:]

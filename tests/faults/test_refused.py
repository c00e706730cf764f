"""What would hang or end without a name is refused before there is a graph."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import study

pytestmark = pytest.mark.slow


def nested_aliases(first: str, entry: str) -> str:
    """Forty values, each of which names the one before it twice: in full, 2 to the 40th values."""
    lines = [f"a0: &a0 {first}"]
    for depth in range(40):
        lines.append(f"a{depth + 1}: &a{depth + 1} {entry.replace('LAST', f'*a{depth}')}")
    return "\n".join(lines) + "\n"


def write(file: str, content: str | bytes) -> Callable[[Path], None]:
    """Writes a file of a project."""

    def write_content(folder: Path) -> None:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / file).write_bytes(data)

    return write_content


def make_pipe(file: str) -> Callable[[Path], None]:
    """Puts a pipe, which nobody writes into, in the place of a file of a project."""

    def replace_by_pipe(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return replace_by_pipe


# What is done to the files of a project, the file that the message names, and the remedy in it.
FAULTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "lists of aliases": (
        write(study.CONFIG, nested_aliases("[x, y]", "[LAST, LAST]")),
        "faults.yaml",
        "without aliases",
    ),
    "mappings of aliases": (
        write(study.CONFIG, nested_aliases("{x: 1}", "{l: LAST, r: LAST}")),
        "faults.yaml",
        "without aliases",
    ),
    "merged mappings of aliases": (
        write(study.CONFIG, nested_aliases("{x: 1}", "{<<: [LAST, LAST]}")),
        "faults.yaml",
        "without aliases",
    ),
    "an alias inside of its own value": (
        write(study.CONFIG, "a: &a [*a]"),
        "faults.yaml",
        "Write the value itself",
    ),
    "deeply nested JSON": (
        write(study.CONFIG, '{"a":' * 50_000),
        "faults.yaml",
        "Use fewer levels",
    ),
    "bytes that are no text": (
        write(study.CONFIG, b"\0\xff" * 99),
        "faults.yaml",
        "Save the file as UTF-8",
    ),
    "a pipe": (make_pipe(study.CONFIG), "faults.yaml", "no configuration file"),
    "a model's config in a pipe": (make_pipe("model/config.json"), "model", "config.json"),
    "a function without a name": (
        write("workflow/tasks/asked.yaml", f"{study.TASK}process_docs: !function\n"),
        "asked.yaml",
        "Write `!function module.function`",
    ),
    "truncated questions": (
        write("data/own.jsonl", '{"query": "a", "cho'),
        "own.jsonl, line 1",
        "Write one JSON object",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_with_the_file_and_the_remedy(name: str, tmp_path: Path) -> None:
    inject_fault, file, remedy = FAULTS[name]
    project = study.write_study(tmp_path / "study")
    inject_fault(project.folder)

    run = project.run("-n", check=False)

    assert run.returncode != 0
    assert "Traceback" not in run.stdout
    message = run.stdout.splitlines()[-1]
    assert message.startswith("lamina: ")
    assert file in message
    assert remedy in message

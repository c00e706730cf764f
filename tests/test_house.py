"""The one direction in which packages import each other, from the workflow to the library."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

SOURCE = ROOT / "src"
# Lowest first: a package imports itself and packages of the lines above it. The library does not
# import the workflow.
LAYERS = [
    {"version", "errors", "registry"},
    {"variant"},
    {"paths"},
    {"options"},
    {"tables"},
    {"store"},
    {"models"},
    {"data"},
    {"engine"},
    {"relevance"},
    {"repair"},
    {"selection", "healing", "diagnosis", "evaluation"},
    {"loading", "notebook"},
    {"config"},
    {"study"},
    {"runtime"},
    {"cost", "checks"},
    {"report"},
    {"stages"},
]
WORKFLOW = {"config", "study", "runtime", "cost", "checks", "report", "stages"}
# What the library does without: it runs where none of them is installed.
ABSENT_FROM_LIBRARY = {"duckdb", "matplotlib", "snakemake", "vl_convert"}


def imported_names(file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def imports() -> Iterator[tuple[str, str, str]]:
    """(importing package, imported package, the line that says so) between packages of lamina."""
    for file in sorted(SOURCE.glob("lamina*/**/*.py")):
        importing = file.relative_to(SOURCE).with_suffix("").parts[1]
        for line, name in imported_names(file):
            root, *parts = name.split(".")
            if root in ("lamina", "lamina_workflow") and parts and parts[0] != importing:
                yield importing, parts[0], f"{file.relative_to(ROOT)}:{line} imports {name}"


def test_imports_point_down() -> None:
    height = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    upwards = [
        line
        for importing, imported, line in imports()
        if importing != "__init__"
        and not height.get(imported, len(LAYERS)) < height.get(importing, -1)
    ]
    assert not upwards, f"{len(upwards)} imports do not point down:\n" + "\n".join(upwards)


def test_each_package_is_of_the_library_or_of_the_workflow() -> None:
    packages = {path.stem for path in (SOURCE / "lamina_workflow").iterdir()}
    assert packages - {"__init__", "__pycache__", "py"} == WORKFLOW


def test_library_imports_nothing_that_only_the_workflow_installs() -> None:
    lines = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in sorted((SOURCE / "lamina").rglob("*.py"))
        for line, name in imported_names(file)
        if name.split(".")[0] in ABSENT_FROM_LIBRARY
    ]
    assert not lines, "\n".join(lines)

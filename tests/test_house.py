"""Packages import each other in one direction only, from the workflow to the library."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

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
    {"repairs"},
    {"selection", "healing", "diagnosis", "evaluation"},
    {"loading", "notebook", "api"},
    {"config"},
    {"study"},
    {"runtime"},
    {"cost", "checks"},
    {"report"},
    {"stages"},
    {"prune_study", "papers", "commands"},
    {"cli"},
    {"__main__"},
]
WORKFLOW = {
    "config",
    "study",
    "runtime",
    "cost",
    "checks",
    "report",
    "stages",
    "prune_study",
    "papers",
    "commands",
    "cli",
    "__main__",
}
# What the library does without: it runs where none of them is installed.
ABSENT_FROM_LIBRARY = {"duckdb", "matplotlib", "snakemake", "vl_convert"}


class Import(NamedTuple):
    """A name that a module imports, also inside functions."""

    file: Path
    line: int
    name: str  # dotted

    @property
    def importing_package(self) -> str:
        """The package, or module, right below `lamina` or `lamina_workflow`."""
        return self.file.relative_to(SOURCE).with_suffix("").parts[1]

    @property
    def imported_package(self) -> str | None:
        """The same of what is imported; None if that is not part of lamina."""
        root, *parts = self.name.split(".")
        if root not in ("lamina", "lamina_workflow") or not parts:
            return None
        return parts[0]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def read_imports(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield Import(file, node.lineno, f"{node.module}.{alias.name}")


@pytest.fixture(scope="module")
def all_imports() -> list[Import]:
    imports: list[Import] = []
    for file in sorted(SOURCE.glob("lamina*/**/*.py")):
        imports += read_imports(file)
    return imports


def test_imports_point_down(all_imports: list[Import]) -> None:
    heights: dict[str, int] = {}
    for height, layer in enumerate(LAYERS):
        heights |= dict.fromkeys(layer, height)

    upward_imports = []
    for module_import in all_imports:
        importing = module_import.importing_package
        imported = module_import.imported_package
        if imported is None or imported == importing or importing == "__init__":
            continue
        if heights.get(imported, len(LAYERS)) >= heights.get(importing, -1):
            upward_imports.append(str(module_import))

    assert upward_imports == []


def test_every_package_of_the_workflow_is_listed_as_one() -> None:
    packages = {path.stem for path in (SOURCE / "lamina_workflow").iterdir()}

    assert packages - {"__init__", "__pycache__", "py"} == WORKFLOW


def test_the_library_imports_nothing_that_only_the_workflow_installs(
    all_imports: list[Import],
) -> None:
    forbidden_imports = [
        str(module_import)
        for module_import in all_imports
        if (SOURCE / "lamina") in module_import.file.parents
        and module_import.name.split(".")[0] in ABSENT_FROM_LIBRARY
    ]

    assert forbidden_imports == []

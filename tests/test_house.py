"""Packages of the library depend on each other in one direction only."""

import ast
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def imports() -> Iterator[tuple[str, str, str]]:
    """(importing package, imported package, the line that says so) for every import between packages of lamina."""
    for file in sorted((SOURCE / "lamina").rglob("*.py")):
        here = file.relative_to(SOURCE).with_suffix("").parts[1]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "lamina" and len(parts) > 1 and parts[1] != here:
                    yield here, parts[1], f"{file.relative_to(SOURCE.parent)}:{node.lineno} imports {name}"


def test_no_two_packages_import_each_other() -> None:
    lines: dict[tuple[str, str], list[str]] = {}
    for here, there, line in imports():
        lines.setdefault((here, there), []).append(line)
    packages = sorted({package for pair in lines for package in pair})
    offending = [
        line
        for one, other in combinations(packages, 2)
        if (one, other) in lines and (other, one) in lines
        # The direction with fewer imports is the wrong one.
        for line in min(lines[one, other], lines[other, one], key=len)
    ]
    assert not offending, "two packages import each other:\n" + "\n".join(offending)

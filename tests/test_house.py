"""The one direction in which the packages of the library import each other."""

import ast
from collections.abc import Iterator

from tests import ROOT

LIBRARY = ROOT / "src/lamina"
# Lowest first: a package imports itself and packages of the lines above it.
LAYERS = [
    {"version", "errors", "registry", "modules"},
    {"config"},
    {"tables"},
    {"store"},
    {"study"},
    {"models"},
    {"data"},
    {"runtime"},
    {"engine"},
    {"relevance"},
    {"repair"},
    {"selection", "healing", "diagnosis", "evaluation"},
    {"cost", "loading", "checks"},
    {"report"},
    {"notebook", "stages"},
]


def imports() -> Iterator[tuple[str, str, str]]:
    """(importing package, imported package, the line that says so) for every import between packages of lamina."""
    for file in sorted(LIBRARY.rglob("*.py")):
        here = file.relative_to(LIBRARY).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "lamina" and len(parts) > 1 and parts[1] != here:
                    yield here, parts[1], f"{file.relative_to(ROOT)}:{node.lineno} imports {name}"


def test_imports_point_down() -> None:
    height = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    upwards = [
        line
        for here, there, line in imports()
        if here != "__init__" and not height.get(there, len(LAYERS)) < height.get(here, -1)
    ]
    assert not upwards, f"{len(upwards)} imports do not point down:\n" + "\n".join(upwards)

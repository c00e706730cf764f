"""Read what the modules of a package declare from their source, without importing them.

A figure names the tables that it reads (`TABLES`), and the class of a metric says how it is
measured. So the rules and the configuration need no lists of them, and import neither torch nor
matplotlib. A new module needs no registration.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[1]


@cache
def declared_literals(package: str, name: str) -> dict[str, Any]:
    """The literal that each module of `package` assigns to `name`, by module.

    Modules that do not assign it are left out.

    package: A name such as `lamina_workflow.report.figures`. Its subpackages do not count.
    """
    literals = {}
    for file in _module_files(package):
        text = file.read_bytes()
        if name.encode() not in text:
            continue  # most modules: they need not be parsed
        values = dict(_assignments(ast.parse(text, filename=str(file)).body))
        if name in values:
            literals[file.stem] = ast.literal_eval(values[name])
    return literals


@cache
def declared_classes(
    package: str, base: str, attributes: tuple[str, ...]
) -> list[tuple[str, dict[str, Any]]]:
    """(module, literals by name) for the `attributes` that classes in `package` assign.

    Only classes whose one base class is called `base` count. `package` is as in `declared_literals`.
    """
    classes = []
    for file in _module_files(package):
        for statement in ast.parse(file.read_bytes(), filename=str(file)).body:
            if not isinstance(statement, ast.ClassDef):
                continue
            if [ast.unparse(each_base) for each_base in statement.bases] != [base]:
                continue
            literals = {
                name: ast.literal_eval(value)
                for name, value in _assignments(statement.body)
                if name in attributes
            }
            classes.append((f"{package}.{file.stem}", literals))
    return classes


def _module_files(package: str) -> list[Path]:
    return sorted(_SOURCE.joinpath(*package.split(".")).glob("*.py"))


def _assignments(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of each assignment to a plain name, with or without a type annotation."""
    for statement in statements:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name) and statement.value is not None:
            yield target.id, statement.value

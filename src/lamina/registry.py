"""What the modules of a package declare, read from their source: neither torch nor matplotlib is imported for it.

A figure names the tables that it reads (`TABLES`), and the class of a metric names how it is measured. So the rules and
the configuration need no list of them: a new module is enough.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[1]


@cache
def declared(package: str, name: str, root: Path = _SOURCE) -> dict[str, Any]:
    """The literal that each module of `package` assigns to `name`, by module; modules without it are left out.

    package: A name such as `lamina.report.figures`. Modules of packages inside it do not count.
    root: The folder that holds the package.
    """
    literals = {}
    for file in sorted(root.joinpath(*package.split(".")).glob("*.py")):
        text = file.read_bytes()
        for statement in ast.parse(text, filename=str(file)).body if name.encode() in text else ():
            target, value = _assigned(statement)
            if target == name and value is not None:
                literals[file.stem] = ast.literal_eval(value)
    return literals


@cache
def declared_classes(
    package: str, base: str, attributes: tuple[str, ...], root: Path = _SOURCE
) -> list[tuple[str, dict[str, Any]]]:
    """(module, literals by name) of those of the `attributes` that classes in `package` assign.

    The classes are those whose only base class is called `base`; `package` and `root` are those of `declared`.
    """
    found = []
    for file in sorted(root.joinpath(*package.split(".")).glob("*.py")):
        for statement in ast.parse(file.read_bytes(), filename=str(file)).body:
            if isinstance(statement, ast.ClassDef) and [
                ast.unparse(each) for each in statement.bases
            ] == [base]:
                assigned = map(_assigned, statement.body)
                pairs = [(name, value) for name, value in assigned if value and name in attributes]
                literals = {str(name): ast.literal_eval(value) for name, value in pairs}
                found.append((f"{package}.{file.stem}", literals))
    return found


def _assigned(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value
    return None, None

"""What the modules of a package declare, read from their source: neither torch nor matplotlib is imported for it.

A figure names the tables that it reads (`TABLES`), a table its grain (`GRAIN`). So the rules know both without a list
of their own, and a new module is all that a new figure takes.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[2]


@cache
def declared(package: str, name: str, root: Path = _SOURCE) -> dict[str, Any]:
    """The literal that each module of `package` assigns to `name`, by module; modules without it are left out.

    Parameters
    ----------
    package
        Such as `lamina.figures`; modules of packages inside it do not count.
    root
        The folder that holds the package.
    """
    found = {}
    for file in sorted(root.joinpath(*package.split(".")).glob("*.py")):
        for statement in ast.parse(file.read_bytes(), filename=str(file)).body:
            target, value = _assigned(statement)
            if target == name and value is not None:
                found[file.stem] = ast.literal_eval(value)
    return found


def _assigned(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value
    return None, None

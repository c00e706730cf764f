"""Hashes of code and files, so that a changed function reruns exactly the jobs that can reach it.

A code digest covers the syntax trees of modules and of everything local they import, without docstrings and positions:
comments, formatting and docstrings rerun nothing, any other edit does.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = "lamina"
_SOURCE = Path(__file__).resolve().parents[2]


def code_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of modules and, transitively, of every module of lamina they import, also inside functions.

    Parameters
    ----------
    modules
        Names such as `lamina.sweep.engine`, or scripts such as `workflow/scripts/sweep_units.py`, which are looked up
        from the folder above `root`.
    root
        The folder that holds the package.

    Raises
    ------
    ModuleNotFoundError
        If one of `modules` does not exist.
    """
    return _closure_digest(modules, root)


def file_digest(path: str | Path) -> str:
    """sha256 of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def _closure_digest(modules: tuple[str, ...], root: Path) -> str:
    seen: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        file = _file_of(name, root)
        if file is None:
            raise ModuleNotFoundError(f"code_digest: there is no module '{name}' in {root}")
        seen[name], imported = _read(name, file, root)
        waiting += imported
    # A package's __init__ without code has no part in what runs, so splitting a package is no edit.
    parts = [f"{name} {digest}" for name, digest in sorted(seen.items()) if digest]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _file_of(name: str, root: Path) -> Path | None:
    if name.endswith(".py"):
        script = root.parent / name
        return script if script.is_file() else None
    stem = root.joinpath(*name.split("."))
    for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _read(name: str, file: Path, root: Path) -> tuple[str, tuple[str, ...]]:
    """Digest of one module ("" without code) and the local modules it imports."""
    tree = ast.parse(file.read_bytes(), filename=str(file))
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            _strip_docstring(node)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            imported.add(source)
            imported.update(f"{source}.{alias.name}" for alias in node.names)
    local = {name for name in imported if name.split(".")[0] == _PACKAGE}
    parents = {name.rsplit(".", depth)[0] for name in local for depth in range(1, name.count(".") + 1)}
    known = sorted(name for name in local | parents if _file_of(name, root))
    if not tree.body:
        return "", tuple(known)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(known)


def _strip_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]

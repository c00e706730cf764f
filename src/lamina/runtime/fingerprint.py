"""Hashes of code, packages and registry entries, so that a change reruns exactly the jobs whose numbers it can change.

A code digest covers the syntax trees of modules and of everything local they import, without docstrings and positions:
comments, formatting and docstrings rerun nothing, any other edit does. Modules that everything imports and that change
no number are left aside. If an entry of such a registry matters to a job, its rule has the entry among its params.
"""

import ast
import hashlib
import json
import re
import sys
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lamina.models.families import FAMILIES

_PACKAGE = "lamina"
_SCRIPTS = "workflow/scripts"
_SOURCE = Path(__file__).resolve().parents[2]
# Not followed, unless a job names one of their modules: how tables are written, messages, the configuration and its
# checks, jobs (what they tell is a param), paths, names of variants, and the registry of families (jobs follow the
# entry of their model).
_NAMES = (
    *("config", "errors", "models.families", "modules", "registry", "runtime", "stages", "store.checksum"),
    *("store.parquet", "study", "tables", "version"),
)
_ASIDE = tuple(f"{_PACKAGE}.{name}" for name in _NAMES)
# Where a package is imported by another name than it is installed by.
_INSTALLED_AS = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}
# Packages on which numbers depend and that come with another package.
_BRINGS = {
    "transformers": ("jinja2", "tokenizers"),  # chat templates; how text becomes tokens
    "lm-eval": ("datasets", "evaluate", "jinja2", "sacrebleu", "scikit-learn"),  # documents, prompts, metrics
}


class _Module(NamedTuple):
    """One module: the hash of its code ("" without any), the local modules and the packages that it imports."""

    digest: str
    local: tuple[str, ...]
    packages: tuple[str, ...]


@cache
def code_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of modules and, transitively, of every module of lamina they import, also inside functions.

    Parameters
    ----------
    modules
        Names such as `lamina.engine.sweep`, or of scripts, such as `sweep_units`, which stand in workflow/scripts
        beside `root`. What is imported by name, such as a repair, must be named here.
    root
        The folder that holds the package.

    Raises
    ------
    ModuleNotFoundError
        If one of `modules` does not exist.
    """
    # A package's __init__ without code runs nothing, so a split of a package is no edit.
    reached = _closure(modules, root)
    return _hashed("\n".join(f"{name} {reached[name].digest}" for name in sorted(reached) if reached[name].digest))


@cache
def package_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of the versions in requirements.lock of the packages that modules and what they reach import.

    Another version of a package that none of them imports changes nothing. Parameters and errors are those of
    `code_digest`; requirements.lock stands in the folder above `root`.
    """
    pins, names = _pins(root.parent / "requirements.lock"), packages(*modules, root=root)
    names |= {brought for name in names for brought in _BRINGS.get(name, ())}
    return _hashed("\n".join(f"{name} {pins[name]}" for name in sorted(names & pins.keys())))


def packages(*modules: str, root: Path = _SOURCE) -> set[str]:
    """Normal names of the packages that modules and what they reach import. Parameters and errors as above."""
    imported = {package for module in _closure(modules, root).values() for package in module.packages}
    return {_INSTALLED_AS.get(package, _normal(package)) for package in imported}


@cache
def entry_digest(entry: Any) -> str:
    """Hash of a registry's entry, a frozen dataclass, or of None for what the registry does not know.

    `help` and fields with their default do not count, so that a new field changes no entry.
    """
    if entry is None:
        return _hashed("none")
    values = {f.name: getattr(entry, f.name) for f in fields(entry) if f.name != "help"}
    differing = {f.name: values[f.name] for f in fields(entry) if f.name in values and values[f.name] != _default(f)}
    return _hashed(json.dumps(differing, sort_keys=True, default=str))


def family_digest(family: str | None) -> str:
    """Hash of the registry's entries of a family, so that a new entry reruns no job of other families.

    The name of a decoder inside a multimodal model begins with that of the model (`gemma3`, `gemma3_text`). Jobs depend
    on the whole registry if the family is unknown (None): the entry of a hub model may name none.
    """
    names = [name for name in sorted(FAMILIES) if family is None or name == family or name.startswith(f"{family}_")]
    return _hashed("".join(f"{name} {entry_digest(FAMILIES[name])}" for name in names))


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _pins(lock: Path) -> dict[str, str]:
    """Versions by the normal form of a package's name."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return {_normal(name): version for name, version in pins}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _closure(modules: tuple[str, ...], root: Path) -> dict[str, _Module]:
    """Modules by name: those given and all that they reach."""
    reached: dict[str, _Module] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        file = _file_of(name, root)
        if file is None:
            raise ModuleNotFoundError(f"code_digest: there is no module '{name}' in {root}")
        reached[name] = _read(name, file, root)
        waiting += [other for other in reached[name].local if not _is_aside(other)]
    return reached


def _is_aside(name: str) -> bool:
    return any(name == aside or name.startswith(f"{aside}.") for aside in _ASIDE)


def _file_of(name: str, root: Path) -> Path | None:
    if "." not in name and name != _PACKAGE:
        script = root.parent / _SCRIPTS / f"{name}.py"
        return script if script.is_file() else None
    stem = root.joinpath(*name.split("."))
    for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _read(name: str, file: Path, root: Path) -> _Module:
    digest, imported = _parse(name, file)
    tops = {name.split(".")[0] for name in imported}
    local = {name for name in imported if name.split(".")[0] == _PACKAGE}
    parents = {name.rsplit(".", depth)[0] for name in local for depth in range(1, name.count(".") + 1)}
    known = sorted(name for name in local | parents if _file_of(name, root))
    packages = sorted(tops - {_PACKAGE} - sys.stdlib_module_names)
    return _Module(digest, tuple(known), tuple(packages))


def _parse(name: str, file: Path) -> tuple[str, list[str]]:
    tree = ast.parse(file.read_bytes(), filename=str(file))
    # What stands under `if TYPE_CHECKING` is read by type checkers and never run.
    tree.body = [s for s in tree.body if not (isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING")]
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
    if name.startswith(f"{_PACKAGE}.relevance.metrics."):
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                # The entry of a metric. Jobs follow it by `entry_digest`, which leaves its help out.
                statement.body = [line for line in statement.body if not isinstance(line, ast.Assign)]
    return _hashed(ast.dump(tree)) if tree.body else "", sorted(imported)


def _strip_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]

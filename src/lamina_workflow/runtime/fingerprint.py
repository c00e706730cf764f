"""Fingerprints of code, packages and registry entries: a change reruns all jobs that it can affect.

Code is hashed as syntax trees without docstrings. So comments and formatting rerun nothing; any
other edit does.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lamina.models.families import FAMILIES
from lamina.options.metrics import ATTRIBUTES
from lamina.paths import find_project, plugin_folders

_SOURCE = Path(__file__).resolve().parents[2]
# Modules that do not count unless a job names them, since they compute no numbers: the
# configuration, messages, paths, the writing of tables. A job depends on the registry entry of its
# model's family, not on the whole registry.
_NOT_FOLLOWED = (
    "lamina.errors.",
    "lamina.models.families.",
    "lamina.options.",
    "lamina.paths.",
    "lamina.registry.",
    "lamina.store.checksum.",
    "lamina.store.parquet.",
    "lamina.store.yaml_errors.",
    "lamina.store.yaml_files.",
    "lamina.tables.",
    "lamina.variant.",
    "lamina.version.",
    "lamina_workflow.checks.",
    "lamina_workflow.config.",
    "lamina_workflow.runtime.",
    "lamina_workflow.stages.",
    "lamina_workflow.study.",
)
_OWN_PACKAGES = {"lamina", "lamina_workflow"}
_READS_OPTIONS = {"pydantic"}  # it computes no numbers
# Packages whose import name differs from their name in the package index.
_INSTALLED_AS = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}
# Packages that are installed with another one and change numbers: chat templates, tokens, prompts,
# documents, metrics.
_BRINGS = {
    "transformers": ("jinja2", "tokenizers"),
    "lm-eval": ("datasets", "evaluate", "jinja2", "sacrebleu", "scikit-learn"),
}


class _Module(NamedTuple):
    """A module: the hash of its code, and what it imports, also inside functions."""

    digest: str  # empty if there is no code
    local_imports: tuple[str, ...]  # modules of lamina
    packages: tuple[str, ...]  # all others that are not in the standard library


@cache
def code_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of modules and of every module of lamina that they import, also inside functions.

    modules: Names such as `lamina.engine.sweep`, or of scripts (`sweep_units`). They must include
        what a job loads by name.

    Raises ModuleNotFoundError if one of them does not exist.
    """
    reached = _reach(modules, root)
    lines = [f"{name} {reached[name].digest}" for name in sorted(reached) if reached[name].digest]
    return _hash("\n".join(lines))


@cache
def package_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of the versions of the packages that the same modules import.

    The versions are those of requirements.lock.
    """
    versions = _locked_versions(find_project(root) / "requirements.lock")
    names = imported_packages(*modules, root=root)
    for name in list(names):
        names.update(_BRINGS.get(name, ()))
    return _hash("\n".join(f"{name} {versions[name]}" for name in sorted(names & versions.keys())))


def imported_packages(*modules: str, root: Path = _SOURCE) -> set[str]:
    """The packages that the same modules import, by the names under which they are installed."""
    imported: set[str] = set()
    for module in _reach(modules, root).values():
        imported.update(module.packages)
    return {_INSTALLED_AS.get(package, _normalise(package)) for package in imported}


@cache
def entry_digest(entry: Any) -> str:
    """Hash of a registry's entry, without `help` and without fields that have their defaults.

    entry: A frozen dataclass, or None.
    """
    if entry is None:
        return _hash(json.dumps(None))
    values = {}
    for field in fields(entry):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(entry, field.name)
        if field.name != "help" and value != default:
            values[field.name] = value
    return _hash(json.dumps(values, sort_keys=True, default=str))


def family_digest(family: str | None) -> str:
    """Hash of the entries of a family and of the decoders inside it (`gemma3_text`).

    If the family is unknown, the entries of all families count.
    """
    names = sorted(FAMILIES)
    if family is not None:
        names = [name for name in names if f"{name}_".startswith(f"{family}_")]
    return _hash("".join(f"{name} {entry_digest(FAMILIES[name])}" for name in names))


def _locked_versions(lock: Path) -> dict[str, str]:
    """The version of each package that a lock file pins."""
    pins = re.finditer(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return {_normalise(pin[1]): pin[2] for pin in pins}


def _normalise(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _reach(modules: tuple[str, ...], root: Path) -> dict[str, _Module]:
    """The modules, and all modules of lamina that they import directly or indirectly, by name."""
    reached: dict[str, _Module] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached[name] = _read(name, root)
        for imported in reached[name].local_imports:
            if not f"{imported}.".startswith(_NOT_FOLLOWED):
                waiting.append(imported)
    return reached


def _find_file(name: str, root: Path) -> Path | None:
    """The file of a module of lamina, a plug-in or a script; None if there is none."""
    parts = name.split(".")
    folders = [find_project(root) / "workflow/scripts"]
    if parts[0] in _OWN_PACKAGES:
        folders = [root, *plugin_folders()]
    for folder in folders:
        path = folder.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _read(name: str, root: Path) -> _Module:
    file = _find_file(name, root)
    if file is None:
        raise ModuleNotFoundError(f"code_digest: there is no module '{name}' in {root}")
    tree = ast.parse(file.read_bytes(), filename=str(file))
    _remove_what_is_not_run(tree)
    if name.startswith("lamina.relevance.metrics."):
        _remove_entries_of_metrics(tree)
    package = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    imported = [imported_name.split(".") for imported_name in set(_imports(tree, package))]
    return _Module(
        digest=_hash(ast.dump(tree)) if tree.body else "",
        local_imports=tuple(_local_modules(imported, root)),
        packages=tuple(
            {parts[0] for parts in imported}
            - _OWN_PACKAGES
            - _READS_OPTIONS
            - sys.stdlib_module_names,
        ),
    )


def _remove_what_is_not_run(tree: ast.Module) -> None:
    """Remove docstrings, also those of attributes, and imports that only a type checker sees."""
    tree.body = [statement for statement in tree.body if not _is_for_type_checker(statement)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_for_type_checker(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _remove_entries_of_metrics(tree: ast.Module) -> None:
    """Remove the declarations in a metric's class.

    Jobs depend on them through the metric's `entry_digest`, which leaves out its help.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [statement for statement in node.body if not _is_declaration(statement)]


def _is_declaration(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ATTRIBUTES


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """The full names of everything that a module in `package` imports: modules, and their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            source = _source_of(node, package)
            for alias in node.names:
                yield ".".join([*source, alias.name])


def _source_of(node: ast.ImportFrom, package: list[str]) -> list[str]:
    """The parts of the name of the module after `from` in a `from … import` statement."""
    source = node.module.split(".") if node.module else []
    if not node.level:
        return source
    return package[: len(package) - node.level + 1] + source


def _local_modules(imported: list[list[str]], root: Path) -> set[str]:
    """The modules of lamina among the imports, together with the packages that contain them."""
    names: set[str] = set()
    for parts in imported:
        if parts[0] in _OWN_PACKAGES:
            names.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return {name for name in names if _find_file(name, root) is not None}

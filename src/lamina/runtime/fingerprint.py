"""Fingerprints of code, packages and registry entries, so that a change reruns exactly the jobs that it can reach. Code
is hashed by its syntax trees without docstrings: comments and formatting rerun nothing, any other edit does."""

import ast
import hashlib
import json
import re
import sys
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lamina.config.metrics import ATTRIBUTES
from lamina.models.families import FAMILIES

_SOURCE = Path(__file__).resolve().parents[2]
# Not followed unless a job names them, since they compute no number: the configuration, messages, paths, how tables
# are written. A job follows the entry of its model's family, and not the whole registry.
_NAMES = (
    "checks config errors models.families modules registry runtime stages store.checksum store.parquet study tables "
    "version"
)
_ASIDE = tuple(f"lamina.{name}." for name in _NAMES.split())
# Where a package is imported by another name than it is installed by.
_INSTALLED_AS = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}
# Packages that come with another one and change numbers: chat templates, tokens, prompts, documents, metrics.
_BRINGS = {
    "transformers": ("jinja2", "tokenizers"),
    "lm-eval": ("datasets", "evaluate", "jinja2", "sacrebleu", "scikit-learn"),
}


class _Module(NamedTuple):
    digest: str  # "" without any code
    local: tuple[str, ...]  # the modules of lamina that it imports
    packages: tuple[str, ...]  # the packages that it imports


@cache
def code_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of modules and of every module of lamina that they import, also inside functions.

    `modules` are names such as `lamina.engine.sweep`, or of scripts (`sweep_units`) in workflow/scripts beside the
    folder `root`. What a job loads by name must be among them: one that does not exist is a ModuleNotFoundError.
    """
    reached = _closure(modules, root)
    return _hashed(
        "\n".join(
            f"{name} {reached[name].digest}" for name in sorted(reached) if reached[name].digest
        )
    )


@cache
def package_digest(*modules: str, root: Path = _SOURCE) -> str:
    """Hash of the versions, in requirements.lock above `root`, of the packages that the same modules import."""
    pins, names = _pins(root.parent / "requirements.lock"), packages(*modules, root=root)
    names |= {brought for name in names for brought in _BRINGS.get(name, ())}
    return _hashed("\n".join(f"{name} {pins[name]}" for name in sorted(names & pins.keys())))


def packages(*modules: str, root: Path = _SOURCE) -> set[str]:
    """The packages that the same modules import, as they are installed."""
    imported = {
        package for module in _closure(modules, root).values() for package in module.packages
    }
    return {_INSTALLED_AS.get(package, _normal(package)) for package in imported}


@cache
def entry_digest(entry: Any) -> str:
    """Hash of a registry's entry (a frozen dataclass, or None), without `help` and without what is as default."""
    values = {}
    for field in fields(entry) if entry is not None else ():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name != "help" and getattr(entry, field.name) != default:
            values[field.name] = getattr(entry, field.name)
    return _hashed(json.dumps(None if entry is None else values, sort_keys=True, default=str))


def family_digest(family: str | None) -> str:
    """Hash of the entries of a family and of the decoders inside it (`gemma3_text`); of all where it is unknown."""
    names = [
        name for name in sorted(FAMILIES) if family is None or f"{name}_".startswith(f"{family}_")
    ]
    return _hashed("".join(f"{name} {entry_digest(FAMILIES[name])}" for name in names))


def _pins(lock: Path) -> dict[str, str]:
    found = re.finditer(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return {_normal(pin[1]): pin[2] for pin in found}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _closure(modules: tuple[str, ...], root: Path) -> dict[str, _Module]:
    reached, waiting = dict[str, _Module](), list(modules)
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached[name] = _read(name, root)
            waiting += [
                other for other in reached[name].local if not f"{other}.".startswith(_ASIDE)
            ]
    return reached


def _file(name: str, root: Path) -> Path | None:
    stem = (root if name.split(".")[0] == "lamina" else root.parent / "workflow/scripts").joinpath(
        *name.split(".")
    )
    return next(
        (file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None
    )


@cache
def _read(name: str, root: Path) -> _Module:
    if (file := _file(name, root)) is None:
        raise ModuleNotFoundError(f"code_digest: there is no module '{name}' in {root}")
    tree = ast.parse(file.read_bytes(), filename=str(file))
    tree.body = [
        s
        for s in tree.body
        if not (isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING")
    ]
    package, imported = (
        name.split(".") if file.stem == "__init__" else name.split(".")[:-1],
        set[str](),
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join(
                [*package[: len(package) - node.level + 1 if node.level else 0], node.module or ""]
            )
            imported.update(f"{source}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.ClassDef) and name.startswith("lamina.relevance.metrics."):
            # Jobs follow a metric's entry by its `entry_digest`, which leaves its help out.
            entry = [
                s
                for s in node.body
                if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) in ATTRIBUTES
            ]
            node.body = [statement for statement in node.body if statement not in entry]
    parts = [other.replace("..", ".").split(".") for other in imported]
    local = {
        ".".join(part[:end])
        for part in parts
        if part[0] == "lamina"
        for end in range(1, len(part) + 1)
    }
    known, tops = (
        [other for other in local if _file(other, root)],
        {part[0] for part in parts} - {"lamina"},
    )
    return _Module(
        _hashed(ast.dump(tree)) if tree.body else "",
        tuple(known),
        tuple(tops - sys.stdlib_module_names),
    )

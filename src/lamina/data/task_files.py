"""Task files of lm-eval as text: what a file includes, which data it reads, and which Python it would run.

This module neither imports lm-eval nor runs anything that a file names. `!function module.name` in a task file makes
lm-eval import a module. Outside of lm-eval's own folder that is foreign code; it runs only if the configuration says
`trust_code: true`.
"""

import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lamina.config import text
from lamina.errors import LaminaError
from lamina.study import paths

_NAMES = re.compile(
    r"""^["']?(?:task|group|tag)["']?:(.*\n?(?:[ \t]*-[ \t].*\n?)*)""", re.MULTILINE
)


def folder(root: str | Path) -> Path:
    """The task files of a project; those of lamina itself if another workflow uses it as a module and has none."""
    there = Path(root, "workflow/tasks")
    return there if there.exists() else paths.REPOSITORY / "workflow/tasks"


class Function(str):
    """The text behind `!function`."""


class TaskFile(NamedTuple):
    """A task file with what it includes."""

    path: Path
    keys: Mapping[str, Any]
    files: tuple[Path, ...]  # the file itself and the files that it includes
    modules: Mapping[
        str, Path | None
    ]  # by `!function`, the Python file beside the task file; None if it is elsewhere


def read(path: Path, above: tuple[Path, ...] = ()) -> TaskFile:
    """Read a task file; `above` are the files that include it.

    Raises LaminaError if the file, or one that it includes, is missing or no mapping, or a function has no name.
    """
    if path.resolve() in above:
        raise LaminaError(f"{path}: the file includes itself. Take it out of `include`.")
    if not path.is_file():
        raise LaminaError(
            f"{path}: there is no such task file{f', which {above[-1]} includes' if above else ''}."
        )
    stat = path.stat()
    own = dict(_loaded(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    included = own.pop("include", [])
    keys: dict[str, Any] = {}
    files, modules = (
        [path],
        {str(function): _module(path, function) for function in _functions(own)},
    )
    for name in included if isinstance(included, list) else [included]:
        other = read(path.parent / str(name), (*above, path.resolve()))
        keys |= {key: value for key, value in other.keys.items() if key != "task_list"}
        files += other.files
        modules |= other.modules
    return TaskFile(path, keys | own, tuple(files), modules)


def files(name: str, root: str | Path = ".") -> list[str]:
    """The task files of a task, group or tag under `root`, their data and Python; nothing of lm-eval's own tasks."""
    listed: list[str] = []
    for file in reached(name, folder(root)):
        listed += [str(path) for path in file.files if not is_of_lm_eval(path)]
        listed += _data(file.keys, Path(root))
        for module in file.modules.values():
            # The module imports its neighbours.
            listed += (
                []
                if module is None or is_of_lm_eval(module)
                else map(str, sorted(module.parent.glob("*.py")))
            )
    return list(dict.fromkeys(listed))


def reached(name: str, folder: Path) -> list[TaskFile]:
    """The files in `folder` of a task, or of a group or tag with everything that it names.

    Raises LaminaError if a file that is named after the task, or known to hold it, cannot be read.
    """
    by_path: dict[Path, TaskFile] = {}
    known, waiting = _known(folder), [name]
    for current in waiting:  # which grows
        if (own := folder / f"{current}.yaml").is_file():
            by_path.setdefault(own, read(own))
        for file in known.get(current, ()):
            by_path.setdefault(file.path, file)
            if file.keys.get("group") == current:
                waiting += [member for member in members(file.keys) if member not in waiting]
    return list(by_path.values())


def members(keys: Mapping[str, Any]) -> list[str]:
    """The tasks and groups that a group names, as text or in mappings that change some of their keys."""
    named = keys.get("task") or []
    names = [
        member.get("group") or member.get("task") if isinstance(member, dict) else member
        for member in named
    ]
    inside = [
        member
        for member in named
        if isinstance(member, dict) and isinstance(member.get("task"), list)
    ]
    return [member for member in names if isinstance(member, str)] + [
        member for nested in inside for member in members(nested)
    ]


def check_written(task: str, kind: object, where: str) -> None:
    """Refuse a task of which no answer is written; `where` is the calibration that asks the model for its own.

    Raises LaminaError if the task's output type, `kind`, is not generate_until.
    """
    if kind != "generate_until":
        raise LaminaError(
            f"{where}.answers: task '{task}' scores by {kind}, so that the model writes no answer of its own. Write "
            "answers: gold, or take a task with output_type: generate_until."
        )


def check_choices(paths: Iterable[Path]) -> None:
    """Refuse task files whose list of choices holds what YAML does not read as text.

    Raises LaminaError, which names the file, the value and how to write it.
    """
    for path in paths:
        choices = read(path).keys.get("doc_to_choice")
        if is_of_lm_eval(path) or not isinstance(choices, list):
            continue
        for choice in choices:
            if isinstance(choice, bool):
                raise LaminaError(
                    f"{path}: doc_to_choice holds {str(choice).lower()}, which is how YAML reads yes, no, on and off "
                    'without quotes. Write its choices in quotes, such as ["no", "yes"].'
                )
            if not isinstance(choice, str):
                raise LaminaError(
                    f"{path}: doc_to_choice holds {choice}, which is no text. Write its choices in quotes, such as "
                    '["0", "1"].'
                )


def check_code(paths: Iterable[Path], where: str) -> None:
    """Refuse task files that make lm-eval import foreign Python.

    Raises LaminaError, which names the file, the function and the key that allows it; `where` is the entry of the
    configuration.
    """
    for path in paths:
        if is_of_lm_eval(path):
            continue
        for function, module in read(path).modules.items():
            if module is None or not is_of_lm_eval(module):
                raise LaminaError(
                    f"{where}: the task file {path} runs Python (`!function {function}`), which lamina does not do "
                    "unless told to. If you trust it, write `trust_code: true` in that entry."
                )


@functools.lru_cache(maxsize=256)
def _loaded(path: Path, *_stamp: int) -> Mapping[str, Any]:
    """The keys of a file, cached because many jobs of a graph ask for the same file."""
    return text.read_task_file(path, {"!function": functools.partial(_function, path)})


def _function(path: Path, loader: yaml.Loader, node: yaml.Node) -> Function:
    named = loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else ""
    if "." not in str(named).strip("."):
        raise LaminaError(
            f"{path}, line {node.start_mark.line + 1}: `!function {named}` names no function of a module. Write "
            "`!function module.function`, where module.py stands beside the file."
        )
    return Function(named)


def _functions(value: Any) -> Iterator[Function]:
    if isinstance(value, Function):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _functions(inner)


def _module(path: Path, function: str) -> Path | None:
    module = path.parent / f"{function.rpartition('.')[0].replace('.', '/')}.py"
    return module if module.is_file() else None


def is_of_lm_eval(path: Path) -> bool:
    """Whether a file was installed with lm-eval."""
    spec = importlib.util.find_spec("lm_eval")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return any(path.resolve().is_relative_to(Path(place).resolve()) for place in places)


@functools.cache
def names_of_lm_eval() -> frozenset[str]:
    """Words that stand for a task, a group or a tag in the task files of lm-eval, which are searched as text: to parse
    14,000 of them takes longer than many a job.
    """
    spec = importlib.util.find_spec("lm_eval")
    texts = (
        file.read_text(encoding="utf-8", errors="replace")
        for place in (spec.submodule_search_locations or () if spec else ())
        for file in Path(place, "tasks").rglob("*.yaml")
    )
    return frozenset(
        word
        for text in texts
        for found in _NAMES.findall(text)
        for word in re.split(r"[\s\"',#]+", found)
    )


def _known(folder: Path) -> Mapping[str, list[TaskFile]]:
    """Task files by the names of their task, group and tags, without files that cannot be read."""
    by_name: dict[str, list[TaskFile]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        try:
            file = read(path)
        except LaminaError:
            continue
        tags = file.keys.get("tag") or []
        for name in [
            file.keys.get("group") or file.keys.get("task"),
            *(tags if isinstance(tags, list) else [tags]),
        ]:
            if isinstance(name, str):
                by_name.setdefault(name, []).append(file)
    return by_name


def _data(keys: Mapping[str, Any], root: Path) -> list[str]:
    """Local data files that a task reads, spelt as in the task; paths count from the root."""
    options = keys.get("dataset_kwargs")
    options = options if isinstance(options, dict) else {}
    named = options.get("data_files", [])
    by_split = list(named.values()) if isinstance(named, dict) else [named]
    listed = [
        str(file) for files in by_split for file in (files if isinstance(files, list) else [files])
    ]
    entries = [file.removeprefix("file://") for file in listed]
    for folder in (keys.get("dataset_path"), options.get("data_dir")):
        folder = str(folder or "").removeprefix("file://")
        if folder and (root / folder).is_dir():
            inside = sorted((root / folder).rglob("*"))
            entries += [str(Path(folder, path.relative_to(root / folder))) for path in inside]
    local = [file for file in entries if "://" not in file]
    wild = [
        str(path.relative_to(root))
        for file in local
        if "*" in file
        for path in sorted(root.glob(file))
    ]
    return [file for file in [*local, *wild] if "*" not in file and not (root / file).is_dir()]

"""Task files of lm-eval as text: what one includes, which data it reads, and the Python that it would run.

Nothing of lm-eval is imported here and nothing that a file names runs. `!function module.name` in a task file makes
lm-eval import a module; outside lm-eval's own folder that is somebody's code, which runs only where the configuration
says `trust_code: true`.
"""

import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lamina import paths
from lamina.config import text
from lamina.errors import LaminaError

FOLDER = paths.own("workflow/tasks")


class Function(str):
    """What `!function` names, as text."""


@dataclass(frozen=True)
class TaskFile:
    """A task file with what it includes.

    Attributes
    ----------
    path : the file.
    told : its keys, those of included files first.
    files : itself and what it includes.
    modules : by `!function` as written, the Python file beside the task file; None if it is looked up elsewhere.
    """

    path: Path
    told: Mapping[str, Any]
    files: tuple[Path, ...]
    modules: Mapping[str, Path | None]


def read(path: Path, above: tuple[Path, ...] = ()) -> TaskFile:
    """A task file; `above` are those that include it.

    Raises
    ------
    LaminaError
        If it, or a file that it includes, is missing or no mapping, or a function has no name.
    """
    if path.resolve() in above:
        raise LaminaError(f"{path}: the file includes itself. Take it out of `include`.")
    if not path.is_file():
        raise LaminaError(f"{path}: there is no such task file{f', which {above[-1]} includes' if above else ''}.")
    own = dict(_loaded(path, _stamp(path)))
    included = own.pop("include", [])
    told: dict[str, Any] = {}
    files, modules = [path], {str(each): _module(path, each) for each in _functions(own)}
    for name in included if isinstance(included, list) else [included]:
        other = read(path.parent / str(name), (*above, path.resolve()))
        told |= {key: value for key, value in other.told.items() if key != "task_list"}
        files += other.files
        modules |= other.modules
    return TaskFile(path, told | own, tuple(files), modules)


def files(name: str, root: str | Path = ".") -> list[str]:
    """What stands behind a task, group or tag under `root`: task files, their data and Python. lm-eval's have none."""
    found: list[str] = []
    for file in reached(name, Path(root, FOLDER)):
        found += [str(path) for path in file.files if not is_of_lm_eval(path)]
        found += _data(file.told, Path(root))
        for module in file.modules.values():
            # What it imports stands beside it.
            found += [] if module is None or is_of_lm_eval(module) else map(str, sorted(module.parent.glob("*.py")))
    return list(dict.fromkeys(found))


def reached(name: str, folder: Path) -> list[TaskFile]:
    """The files of a task, or of a group or tag with all that it names, as far as they stand in `folder`.

    Raises
    ------
    LaminaError
        If one that is named after the task or known to hold it cannot be read.
    """
    found: dict[Path, TaskFile] = {}
    known, waiting, seen = _known(folder), [name], set[str]()
    while waiting:
        each = waiting.pop(0)
        if each in seen:
            continue
        seen.add(each)
        if (own := folder / f"{each}.yaml").is_file():
            found.setdefault(own, read(own))
        for file in known.get(each, ()):
            found.setdefault(file.path, file)
            if file.told.get("group") == each:
                waiting += members(file.told)
    return list(found.values())


def members(told: Mapping[str, Any]) -> list[str]:
    """The tasks and groups that a group names, also in mappings that change something of them."""
    named = told.get("task") or []
    each = [one.get("group") or one.get("task") if isinstance(one, dict) else one for one in named]
    inside = [one for one in named if isinstance(one, dict) and isinstance(one.get("task"), list)]
    return [one for one in each if isinstance(one, str)] + [one for nested in inside for one in members(nested)]


def check_code(paths: Iterable[Path], where: str) -> None:
    """Refuse task files that make lm-eval import somebody's Python.

    Raises
    ------
    LaminaError
        Naming the file, the function and the key that allows it; `where` is the entry of the configuration.
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
def _loaded(path: Path, _stamp: tuple[int, ...]) -> Mapping[str, Any]:
    """The keys of a file: many jobs of a graph ask for the same."""
    return text.load(path, {"!function": functools.partial(_function, path)})


def _stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


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
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _functions(each)


def _module(path: Path, function: str) -> Path | None:
    module = path.parent / f"{function.rpartition('.')[0].replace('.', '/')}.py"
    return module if module.is_file() else None


def is_of_lm_eval(path: Path) -> bool:
    """Whether a file was installed with lm-eval."""
    found = importlib.util.find_spec("lm_eval")
    places = list(found.submodule_search_locations or ()) if found else []
    return any(path.resolve().is_relative_to(Path(place).resolve()) for place in places)


def _known(folder: Path) -> Mapping[str, list[TaskFile]]:
    """Task files by the names of their task, group and tags; one that cannot be read is nobody's."""
    paths = sorted(folder.rglob("*.yaml"))
    return _index(tuple(paths), tuple((path.resolve(), _stamp(path)) for path in paths))


@functools.lru_cache(maxsize=8)
def _index(paths: tuple[Path, ...], _changed: tuple[tuple[Path, tuple[int, ...]], ...]) -> Mapping[str, list[TaskFile]]:
    found: dict[str, list[TaskFile]] = {}
    for path in paths:
        try:
            file = read(path)
        except LaminaError:
            continue
        tags = file.told.get("tag") or []
        names = [file.told.get("group") or file.told.get("task"), *(tags if isinstance(tags, list) else [tags])]
        for name in names:
            if isinstance(name, str):
                found.setdefault(name, []).append(file)
    return found


def _data(told: Mapping[str, Any], root: Path) -> list[str]:
    """Local data files that a task reads, as it writes them; paths count from the root."""
    options = told.get("dataset_kwargs")
    named = options.get("data_files", []) if isinstance(options, dict) else []
    by_split = list(named.values()) if isinstance(named, dict) else [named]
    each = [file for files in by_split for file in (files if isinstance(files, list) else [files])]
    folder = told.get("dataset_path")
    if isinstance(folder, str) and (root / folder).is_dir():
        each += [str(Path(folder, path.relative_to(root / folder))) for path in sorted((root / folder).rglob("*"))]
    found = [str(file) for file in each if "://" not in str(file)]
    wild = [str(path.relative_to(root)) for file in found if "*" in file for path in sorted(root.glob(file))]
    return [file for file in [*found, *wild] if "*" not in file and not (root / file).is_dir()]

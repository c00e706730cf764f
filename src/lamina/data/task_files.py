"""Reads lm-eval task files as text: what they include, which data and which Python they use.

This module neither imports lm-eval nor runs anything that a file names. `!function module.name` in
a task file makes lm-eval import a module. Outside of lm-eval's own folder that is foreign code; it
runs only if the configuration says `trust_code: true`.
"""

import functools
import importlib.util
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lamina import paths
from lamina.errors import LaminaError
from lamina.options.calibrations import Calibration, Task, Tasks
from lamina.store import yaml_files

# The value of a key that names a task, group or tag: the rest of its line, and a list below it.
_NAMES = re.compile(
    r"""^["']?(?:task|group|tag)["']?:(.*\n?(?:[ \t]*-[ \t].*\n?)*)""", re.MULTILINE
)


class Function(str):
    """The text after `!function`, such as `utils.doc_to_text`."""


class TaskFile(NamedTuple):
    """A task file together with the files that it includes."""

    path: Path
    keys: Mapping[str, Any]
    files: tuple[Path, ...]
    """The file itself, then the files that it includes."""
    modules: Mapping[str, Path | None]
    """By `!function` text, the Python file next to the task file; None if there is no such file."""


def find_task_folder(root: str | Path) -> Path:
    """The task files of a project.

    They are lamina's own if another workflow uses lamina as a module and has none.
    """
    project_folder = Path(root, "workflow/tasks")
    return project_folder if project_folder.exists() else paths.PROJECT / "workflow/tasks"


def read_task(path: Path, including: tuple[Path, ...] = ()) -> TaskFile:
    """Read a task file and what it includes.

    including: The files that lead to this one by their `include`.

    Raises LaminaError if the file, or one that it includes, is missing or not a mapping, or if a
    function has no name.
    """
    if path.resolve() in including:
        raise LaminaError(f"{path}: the file includes itself. Take it out of `include`.")
    if not path.is_file():
        reason = f", which {including[-1]} includes" if including else ""
        raise LaminaError(f"{path}: there is no such task file{reason}.")

    stat = path.stat()
    own_keys = dict(_load_keys(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    included_names = own_keys.pop("include", [])
    if not isinstance(included_names, list):
        included_names = [included_names]
    modules = {str(function): _find_module(path, function) for function in _functions(own_keys)}

    keys: dict[str, Any] = {}
    all_files = [path]
    for name in included_names:
        included = read_task(path.parent / str(name), (*including, path.resolve()))
        keys |= included.keys
        keys.pop("task_list", None)
        all_files += included.files
        modules |= included.modules
    return TaskFile(path, keys | own_keys, tuple(all_files), modules)


def list_task_files(name: str, root: str | Path = ".") -> list[str]:
    """The task files of a task, group or tag under `root`, with their data and Python.

    Nothing of lm-eval's own tasks is among them.
    """
    listed: list[str] = []
    for task_file in list_reached_files(name, find_task_folder(root)):
        listed += [str(path) for path in task_file.files if not is_of_lm_eval(path)]
        listed += _list_data(task_file.keys, Path(root))
        for module in task_file.modules.values():
            if module is not None and not is_of_lm_eval(module):
                # The module may import other modules of its folder.
                listed += map(str, sorted(module.parent.glob("*.py")))
    return list(dict.fromkeys(listed))


def list_reached_files(name: str, folder: Path) -> list[TaskFile]:
    """The files in `folder` of a task, or of a group or tag with everything that it names.

    Raises LaminaError if a file that is named after the task, or known to hold it, cannot be read.
    """
    files_by_name = _index_files(folder)
    files_by_path: dict[Path, TaskFile] = {}
    seen_names = {name}
    waiting = deque([name])
    while waiting:
        current = waiting.popleft()
        named_path = folder / f"{current}.yaml"
        if named_path.is_file() and named_path not in files_by_path:
            files_by_path[named_path] = read_task(named_path)
        for task_file in files_by_name.get(current, ()):
            files_by_path.setdefault(task_file.path, task_file)
            if task_file.keys.get("group") != current:
                continue
            for member in list_members(task_file.keys):
                if member not in seen_names:
                    seen_names.add(member)
                    waiting.append(member)
    return list(files_by_path.values())


def list_task_keys(name: str, root: Path) -> list[Mapping[str, Any]]:
    """The keys of the task `name`, or of the tasks of a group or tag that the project has.

    A group or tag of lm-eval has none here.
    """
    task_files = list_reached_files(name, find_task_folder(root))
    if task_files:
        return [file.keys for file in task_files if isinstance(file.keys.get("task"), str)]
    keys_of_files = [read_task(path).keys for path in _files_of_lm_eval().get(name, [])]
    return [keys for keys in keys_of_files if keys.get("task") == name]


def list_members(keys: Mapping[str, Any]) -> list[str]:
    """The tasks and groups that a group names.

    An entry is a name, or a mapping that changes some keys of what it names and may be a group of
    its own. Names in such groups come last.
    """
    names: list[str] = []
    nested_names: list[str] = []
    for entry in keys.get("task") or []:
        name = entry
        if isinstance(entry, dict):
            name = entry.get("group") or entry.get("task")
            if isinstance(entry.get("task"), list):
                nested_names += list_members(entry)
        if isinstance(name, str):
            names.append(name)
    return names + nested_names


def check_written(task: str, kind: object, where: str) -> None:
    """Refuse a task whose answers are not generated.

    where: The calibration that asks the model for its own answers.

    Raises LaminaError if the task's output type, `kind`, is not generate_until.
    """
    if kind != "generate_until":
        raise LaminaError(
            f"{where}.answers: task '{task}' scores by {kind}, so the model writes no answer of "
            "its own. Write answers: gold, or use a task with output_type: generate_until."
        )


def check_questions(where: str, entry: Calibration, option: str) -> None:
    """Refuse a calibration whose answers no model can write to be judged by exact match.

    where: The calibration's key in the configuration.
    option: The key of a selector that asks for it, with its value.

    Raises LaminaError if it does not consist of tasks.
    """
    if isinstance(entry, Task | Tasks):
        return
    raise LaminaError(
        f"{where}: `{option}` counts right written answers to the questions of a task, but it "
        "holds no questions of a task. Write `task: NAME` of a task with output_type: "
        "generate_until here, or leave that option out."
    )


def check_exact_match(
    where: str, task: str | None, kind: object, metric_names: Collection[str], option: str
) -> None:
    """Refuse a task that does not judge generated answers by exact match.

    where, option: As for `check_questions`.

    Raises LaminaError if its output type, `kind`, is not generate_until, or exact_match is not
    among its metrics.
    """
    reason = ""
    if kind != "generate_until":
        reason = f"scores by {kind}, so no answer is written"
    elif "exact_match" not in metric_names:
        reason = "has no exact_match, so its answers cannot be marked right or wrong"
    if reason:
        raise LaminaError(
            f"{where}: `{option}` counts right written answers, but task '{task}' {reason}. Use a "
            "task with output_type: generate_until and exact_match, such as gsm8k, or leave that "
            "option out."
        )


def check_choices(task_paths: Iterable[Path]) -> None:
    """Refuse the user's task files if YAML does not read all of their choices as text.

    Raises LaminaError that names the file, the value and how to write it.
    """
    for path in task_paths:
        choices = read_task(path).keys.get("doc_to_choice")
        if is_of_lm_eval(path) or not isinstance(choices, list):
            continue
        for choice in choices:
            if isinstance(choice, bool):
                raise LaminaError(
                    f"{path}: doc_to_choice holds {str(choice).lower()}. YAML reads yes, no, on "
                    "and off as true or false unless they are quoted. Write its choices in quotes, "
                    'such as ["no", "yes"].'
                )
            if not isinstance(choice, str):
                raise LaminaError(
                    f"{path}: doc_to_choice holds {choice}, which is no text. Write its choices "
                    'in quotes, such as ["0", "1"].'
                )


def check_code(task_paths: Iterable[Path], where: str) -> None:
    """Refuse task files that make lm-eval import foreign Python.

    where: The entry of the configuration that names the task.

    Raises LaminaError that names the file, the function and the key that allows it.
    """
    for path in task_paths:
        if is_of_lm_eval(path):
            continue
        for function, module in read_task(path).modules.items():
            if module is None or not is_of_lm_eval(module):
                raise LaminaError(
                    f"{where}: the task file {path} runs Python (`!function {function}`), which "
                    "lamina does not do unless told to. If you trust it, write `trust_code: true` "
                    "in that entry."
                )


def is_of_lm_eval(path: Path) -> bool:
    """Whether a file was installed with lm-eval."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in _lm_eval_folders())


def names_of_lm_eval() -> frozenset[str]:
    """Words that stand for a task, a group or a tag in the task files of lm-eval."""
    return frozenset(_files_of_lm_eval())


@functools.cache
def _files_of_lm_eval() -> Mapping[str, list[Path]]:
    """The task files of lm-eval by the words that stand for a task, a group or a tag in them.

    The files are searched as text: parsing 14,000 of them would take longer than many a job.
    """
    files_by_word: dict[str, list[Path]] = {}
    for package_folder in _lm_eval_folders():
        for path in Path(package_folder, "tasks").rglob("*.yaml"):
            content = path.read_text(encoding="utf-8", errors="replace")
            words: set[str] = set()
            for value in _NAMES.findall(content):
                words.update(re.split(r"[\s\"',#]+", value))
            for word in words:
                files_by_word.setdefault(word, []).append(path)
    return files_by_word


@functools.cache
def _lm_eval_folders() -> list[Path]:
    """Where lm-eval is installed; empty if it is not."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location).resolve() for location in spec.submodule_search_locations]


@functools.lru_cache(maxsize=256)
def _load_keys(path: Path, *_stamp: int) -> Mapping[str, Any]:
    """The keys of a file, without those of the files that it includes.

    Cached because many jobs of a graph ask for the same file.
    """
    return yaml_files.read_task_file(
        path, {"!function": functools.partial(_construct_function, path)}
    )


def _construct_function(path: Path, loader: yaml.Loader, node: yaml.Node) -> Function:
    name = loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else ""
    if "." not in str(name).strip("."):
        line_number = node.start_mark.line + 1
        raise LaminaError(
            f"{path}, line {line_number}: `!function {name}` names no function of a module. Write "
            "`!function module.function`, where module.py is next to the file."
        )
    return Function(name)


def _functions(value: Any) -> Iterator[Function]:
    """All functions in the keys of a task file, at any depth."""
    if isinstance(value, Function):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _functions(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _functions(entry)


def _find_module(path: Path, function: str) -> Path | None:
    """The Python file of a function in a task file; None if it is not next to the task file."""
    module_name = function.rpartition(".")[0]
    module = path.parent / f"{module_name.replace('.', '/')}.py"
    return module if module.is_file() else None


def _index_files(folder: Path) -> Mapping[str, list[TaskFile]]:
    """Task files by the names of their task, group and tags, without files that cannot be read."""
    files_by_name: dict[str, list[TaskFile]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        try:
            task_file = read_task(path)
        except LaminaError:
            continue
        names = [task_file.keys.get("group") or task_file.keys.get("task")]
        tags = task_file.keys.get("tag") or []
        names += tags if isinstance(tags, list) else [tags]
        for name in names:
            if isinstance(name, str):
                files_by_name.setdefault(name, []).append(task_file)
    return files_by_name


def _list_data(keys: Mapping[str, Any], root: Path) -> list[str]:
    """Local data files that a task reads, spelt as in the task; paths are relative to the root."""
    options = keys.get("dataset_kwargs")
    if not isinstance(options, dict):
        options = {}
    files = _list_named_files(options.get("data_files", []))
    for data_folder in (keys.get("dataset_path"), options.get("data_dir")):
        files += _list_folder(str(data_folder or "").removeprefix("file://"), root)

    local_files = [file for file in files if "://" not in file]
    matches: list[str] = []
    for pattern in local_files:
        if "*" in pattern:
            matches += [str(path.relative_to(root)) for path in sorted(root.glob(pattern))]
    listed = [file for file in [*local_files, *matches] if "*" not in file]
    return [file for file in listed if not (root / file).is_dir()]


def _list_named_files(data_files: Any) -> list[str]:
    """The files that `data_files` of `datasets` names: one file, a list, or either by split."""
    by_split = list(data_files.values()) if isinstance(data_files, dict) else [data_files]
    named: list[str] = []
    for split_files in by_split:
        entries = split_files if isinstance(split_files, list) else [split_files]
        named += [str(entry).removeprefix("file://") for entry in entries]
    return named


def _list_folder(folder: str, root: Path) -> list[str]:
    """Everything in a folder under the root; nothing if there is no such folder."""
    if not folder or not (root / folder).is_dir():
        return []
    found = sorted((root / folder).rglob("*"))
    return [str(Path(folder, path.relative_to(root / folder))) for path in found]

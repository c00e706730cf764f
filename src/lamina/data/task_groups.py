"""Finds lm-eval tasks by name, and groups of them such as MMLU.

It also checks which Python their files would run. `lm_tasks` turns tasks into samples.
"""

import difflib
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import datasets
import lm_eval.utils
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api import metrics  # noqa: F401, which fills the registry
from lm_eval.api.group import Group
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import AggMetricConfig
from lm_eval.tasks import TaskManager

from lamina.data import task_files
from lamina.errors import LaminaError

TaskOrGroup: TypeAlias = "ConfigurableTask | Group"
"""A task or a group. A tag, which in lm-eval is a list of tasks, is a group here."""

FILE_BUILDERS = {"arrow", "csv", "json", "parquet", "text"}
"""Builders of `datasets` that read local files."""

# The sandbox lets templates of a task file read its documents, and no other Python objects.
_sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
_sandbox.filters |= lm_eval.utils.env.filters
lm_eval.utils.env = _sandbox


class CacheSetting(NamedTuple):
    """An attribute of a module that holds the folder of a cache."""

    module: Any
    attribute: str


# Both caches may return old contents: `datasets` recognises files by name and time, and Python
# recognises modules by size and second.
DATA_CACHE = CacheSetting(datasets.config, "HF_DATASETS_CACHE")
MODULE_CACHE = CacheSetting(sys, "pycache_prefix")
datasets.disable_caching()  # of the results of functions, which it recognises by their names

# Data sets map their files, so these folders are deleted when the process ends.
_cache_folders: list[tempfile.TemporaryDirectory[str]] = []


class DatasetTask(ConfigurableTask):
    """A task on a data set that is already in memory."""

    def __init__(self, dataset: datasets.DatasetDict, config: dict[str, Any]) -> None:
        self._loaded_dataset = dataset
        super().__init__(config=config)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Use the data set of the constructor; lm-eval would load one here."""
        self.dataset = self._loaded_dataset


def find_task(name: str, project_tasks: str | Path, trust_code: bool = False) -> TaskOrGroup:
    """The lm-eval task, group or tag of that name.

    The project's task files are searched first, then lm-eval's. Python that a file of the project
    names runs only with `trust_code`; lm-eval's own Python always runs.

    A tag, and a group without an aggregation of its own, get the usual one of lm-eval: the mean
    over all documents, of every metric that all of their tasks have.

    Raises LaminaError if nothing has that name, or one of its files would run Python that is not
    trusted.
    """
    manager = _index_tasks(name, str(project_tasks))
    paths = _task_file_paths(manager.task_index, name)
    task_files.check_choices(paths)
    if not trust_code:
        task_files.check_code(paths, f"'{name}'")
        for path in paths:
            _check_metrics(path, name)

    with _fresh_data(paths):
        loaded = manager.load(name)
    kind = manager.task_index[name].kind.name
    if kind == "GROUP":
        group = loaded["groups"][name]
    elif kind == "TAG":
        group = Group(name)
        for task in loaded["tasks"].values():
            group.add(task)
    else:
        return loaded["tasks"][name]

    if not group.has_aggregation:
        shared_metrics = _list_shared_metrics(list_tasks(group))
        group.aggregate_metric_list = [AggMetricConfig(metric) for metric in shared_metrics]
    return group


def list_tasks(task_or_group: TaskOrGroup) -> list[ConfigurableTask]:
    """The single tasks, in lm-eval's order."""
    if not isinstance(task_or_group, Group):
        return [task_or_group]
    return list(task_or_group.get_all_tasks())


def advise_single_tasks(group: Group) -> str:
    """The advice for a place where a group is not allowed."""
    names = [str(task.config.task) for task in list_tasks(group)]
    more = " …" if len(names) > 5 else ""
    return f"Name its tasks one by one: {', '.join(names[:5])}{more}"


def split_in_proportion(total: int, sizes: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to `sizes`.

    The numbers with the largest remainders are rounded up; among equal remainders, the first ones.
    """
    quotients = [divmod(total * size, sum(sizes)) for size in sizes]
    counts = [int(whole) for whole, _ in quotients]
    by_remainder = sorted(range(len(sizes)), key=lambda index: -quotients[index][1])
    n_lacking = total - sum(counts)
    for index in by_remainder[:n_lacking]:
        counts[index] += 1
    return counts


@contextmanager
def empty_cache(setting: CacheSetting) -> Iterator[None]:
    """While open, a cache is an empty folder."""
    usual_folder = getattr(setting.module, setting.attribute)
    folder = tempfile.TemporaryDirectory()
    _cache_folders.append(folder)
    setattr(setting.module, setting.attribute, folder.name)
    try:
        yield
    finally:
        setattr(setting.module, setting.attribute, usual_folder)


def _fresh_data(paths: Sequence[Path]) -> AbstractContextManager[None]:
    """While open, local data is read again if one of the user's task files names any."""
    own_paths = [path for path in paths if not task_files.is_of_lm_eval(path)]
    builders = {task_files.read_task(path).keys.get("dataset_path") for path in own_paths}
    return empty_cache(DATA_CACHE) if builders & FILE_BUILDERS else nullcontext()


def _index_tasks(name: str, project_tasks: str) -> TaskManager:
    """An index that holds `name`, and lm-eval's own tasks only if they are needed.

    Indexing these takes seconds. They are not needed if the project's tasks hold everything that
    `name` refers to.
    """
    manager = TaskManager(include_path=project_tasks, include_defaults=False)
    if not manager.task_index.keys() >= set(_reach_names(manager.task_index, name)):
        manager = TaskManager(include_path=project_tasks)
    if name not in manager.task_index:
        nearest = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = "`lm_eval ls tasks` lists all."
        if nearest:
            hint = f"The nearest are: {', '.join(nearest)}."
        raise LaminaError(f"there is no lm-eval task '{name}'. {hint}")
    return manager


def _task_file_paths(index: Mapping[str, Any], name: str) -> list[Path]:
    """The files of a task, or of all tasks and groups that a group or tag names."""
    entries = [index[reached] for reached in _reach_names(index, name) if reached in index]
    paths = [Path(entry.yaml_path) for entry in entries if entry.yaml_path is not None]
    return list(dict.fromkeys(paths))


def _reach_names(index: Mapping[str, Any], name: str) -> list[str]:
    """The name of a task, or of a group or tag and of everything that it names.

    Names that the index lacks are among them.
    """
    reached = [name]
    unvisited = deque([name])
    while unvisited:
        entry = index.get(unvisited.popleft())
        for member in _list_members(entry):
            if member not in reached:
                reached.append(member)
                unvisited.append(member)
    return reached


def _list_members(entry: Any) -> list[str]:
    """The members that a group or tag of the index names, sorted; empty for a task, or for None."""
    if entry is None:
        return []
    if entry.kind.name == "GROUP":
        return sorted(task_files.list_members(entry.cfg))
    if entry.kind.name == "TAG":
        return sorted(entry.tags)
    return []


def _list_shared_metrics(tasks: Sequence[ConfigurableTask]) -> list[str]:
    """The metrics that all tasks have, in the order of the first task."""
    if not tasks:
        return []
    aggregations = [task.aggregation() for task in tasks]
    shared = set(aggregations[0]).intersection(*aggregations)
    return [metric for metric in aggregations[0] if metric in shared]


def _check_metrics(path: Path, name: str) -> None:
    """Refuse metrics that lm-eval does not know.

    lm-eval would run them as scripts from the hub or from this disk.
    """
    if task_files.is_of_lm_eval(path):
        return
    metric_list = task_files.read_task(path).keys.get("metric_list")
    if not isinstance(metric_list, list):
        return
    for entry in metric_list:
        if not isinstance(entry, dict):
            continue
        metric = entry.get("metric")
        if entry.get("hf_evaluate") or metric not in metric_registry:
            raise LaminaError(
                f"'{name}': the task file {path} names the metric '{metric}', which is not one of "
                "lm-eval's own: it would be a script, which lamina does not run unless told to. If "
                "you trust it, write `trust_code: true` in that entry."
            )

"""lm-eval tasks by name, and groups of them such as MMLU: what a group holds, and how samples are drawn across it."""

import difflib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

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

# Templates of a task file can read its documents, and nothing else of Python.
_sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
_sandbox.filters |= lm_eval.utils.env.filters
lm_eval.utils.env = _sandbox

# `datasets` caches files by name and time, and results of functions by their name; Python modules by size and second.
LOCAL = ("arrow", "csv", "json", "parquet", "text")  # builders of `datasets` that read files
DATA, MODULES = (
    (datasets.config, "HF_DATASETS_CACHE"),
    (sys, "pycache_prefix"),
)  # settings that name a cache's folder

datasets.disable_caching()
_folders: list[
    tempfile.TemporaryDirectory[str]
] = []  # deleted when the process ends: data sets map their files

# A tag is a list of tasks in lm-eval, and a group here.
TaskOrGroup: TypeAlias = "ConfigurableTask | Group"


class DatasetTask(ConfigurableTask):
    """A task on a data set that is at hand."""

    def __init__(self, dataset: datasets.DatasetDict, config: dict[str, Any]) -> None:
        self._given = dataset
        super().__init__(config=config)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Nothing is loaded."""
        self.dataset = self._given


def find(name: str, local: str | Path, trust_code: bool = False) -> TaskOrGroup:
    """The lm-eval task, group or tag of that name, from the task files in `local` or from lm-eval's own.

    Python that a file in `local` names runs only with `trust_code`; lm-eval's own Python always may.

    A tag, and a group without an aggregation of its own, get the usual one of lm-eval: the mean over all documents of
    every metric that all of their tasks have.

    Raises LaminaError if there is nothing of that name, or one of its files would run Python that is not trusted.
    """
    manager = _manager(name, str(local))
    entries = [
        entry for entry in map(manager.task_index.get, _reached(manager.task_index, name)) if entry
    ]
    paths = list(
        dict.fromkeys(Path(entry.yaml_path) for entry in entries if entry.yaml_path is not None)
    )
    task_files.check_choices(paths)
    if not trust_code:
        task_files.check_code(paths, f"'{name}'")
        for path in paths:
            _check_metrics(path, name)
    builders = {
        task_files.read(path).keys.get("dataset_path")
        for path in paths
        if not task_files.is_of_lm_eval(path)
    }
    with read_anew(DATA) if builders & {*LOCAL} else nullcontext():
        loaded = manager.load(name)
    kind = manager.task_index[name].kind.name
    if kind not in ("GROUP", "TAG"):
        return loaded["tasks"][name]
    group = loaded["groups"][name] if kind == "GROUP" else Group(name)
    if kind == "TAG":
        for task in loaded["tasks"].values():
            group.add(task)
    if not group.has_aggregation:
        measured = [task.aggregation() for task in leaves(group)]
        shared = (
            [metric for metric in measured[0] if all(metric in own for own in measured)]
            if measured
            else []
        )
        group.aggregate_metric_list = [AggMetricConfig(metric) for metric in shared]
    return group


def leaves(found: TaskOrGroup) -> list[ConfigurableTask]:
    """The single tasks, in lm-eval's order."""
    return found.get_all_tasks() if isinstance(found, Group) else [found]


def one_by_one(group: Group) -> str:
    """The advice where a group is not allowed."""
    names = [str(task.config.task) for task in leaves(group)]
    return f"Name its tasks one by one: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


def shares(total: int, sizes: Sequence[float]) -> list[int]:
    """`total` split in proportion to `sizes`, rounded up where remainders are largest (the first of equal ones)."""
    parts = [divmod(total * size, sum(sizes)) for size in sizes]
    lacking = total - int(sum(whole for whole, _ in parts))
    rounded_up = sorted(range(len(sizes)), key=lambda place: -parts[place][1])[:lacking]
    return [int(whole) + (place in rounded_up) for place, (whole, _) in enumerate(parts)]


@contextmanager
def read_anew(cache: tuple[Any, str]) -> Iterator[None]:
    """While open, a cache is an empty folder."""
    before = getattr(*cache)
    _folders.append(tempfile.TemporaryDirectory())
    setattr(*cache, _folders[-1].name)
    try:
        yield
    finally:
        setattr(*cache, before)


def _manager(name: str, local: str) -> TaskManager:
    """An index that holds `name`. It includes lm-eval's own tasks only if the project's tasks do not hold all of it."""
    manager = TaskManager(include_path=local, include_defaults=False)
    if not manager.task_index.keys() >= {*_reached(manager.task_index, name)}:
        manager = TaskManager(include_path=local)
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f"The nearest are: {', '.join(near)}." if near else "`lm_eval ls tasks` lists all."
        raise LaminaError(f"there is no lm-eval task '{name}'. {hint}")
    return manager


def _reached(index: Mapping[str, Any], name: str) -> list[str]:
    """The name of a task, or of a group or tag with everything that it names, whether the index has it or not."""
    names = [name]
    for entry in (index[each] for each in names if each in index):  # which grow
        kind = entry.kind.name
        inside = (
            task_files.members(entry.cfg)
            if kind == "GROUP"
            else entry.tags
            if kind == "TAG"
            else ()
        )
        names += [member for member in sorted(inside) if member not in names]
    return names


def _check_metrics(path: Path, name: str) -> None:
    """Refuse metrics that lm-eval does not know: it would run them as scripts of the hub or of this disk."""
    if task_files.is_of_lm_eval(path):
        return
    listed = task_files.read(path).keys.get("metric_list")
    for metric in listed if isinstance(listed, list) else ():
        if isinstance(metric, dict) and (
            metric.get("hf_evaluate") or metric.get("metric") not in metric_registry
        ):
            raise LaminaError(
                f"'{name}': the task file {path} names the metric '{metric.get('metric')}', which is none of "
                "lm-eval's own: it would be a script, which lamina does not run unless told to. If you trust it, write "
                "`trust_code: true` in that entry."
            )

"""lm-eval tasks by name, and groups of them such as MMLU: what a group holds, and how samples are drawn across it."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import lm_eval.utils
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api import metrics  # noqa: F401, which fills the registry
from lm_eval.api.group import Group
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import AggMetricConfig
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind

from lamina.data import task_files
from lamina.errors import LaminaError

# The templates of a task file see its documents and nothing else of Python.
_sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
_sandbox.filters |= lm_eval.utils.env.filters
lm_eval.utils.env = _sandbox

# A tag, which to lm-eval is a list of tasks, is a group here.
TaskOrGroup: TypeAlias = "ConfigurableTask | Group"


def find(name: str, local: str | Path, trust_code: bool = False) -> TaskOrGroup:
    """The lm-eval task, group or tag of that name, from the task files in `local` or from lm-eval's own.

    Python that a file in `local` names runs only with `trust_code`; lm-eval's own is a part of the package.

    A group for which lm-eval aggregates nothing, and a tag, get what its groups do by default: the mean over all
    documents of every metric that all of their tasks have.

    Raises
    ------
    LaminaError
        If there is none of that name, or a file of it would run Python that is not trusted.
    """
    manager = _manager(name, str(local))
    if not trust_code:
        paths = list(dict.fromkeys(_files(manager.task_index, name, set())))
        task_files.check_code(paths, f"'{name}'")
        for path in paths:
            _check_metrics(path, name)
    loaded = manager.load(name)
    kind = manager.task_index[name].kind
    if kind not in (Kind.GROUP, Kind.TAG):
        return loaded["tasks"][name]
    group = loaded["groups"][name] if kind is Kind.GROUP else Group(name)
    if kind is Kind.TAG:
        for task in loaded["tasks"].values():
            group.add(task)
    if not group.has_aggregation:
        every = [task.aggregation() for task in leaves(group)]
        shared = [metric for metric in every[0] if all(metric in each for each in every)] if every else []
        group.aggregate_metric_list = [AggMetricConfig(metric) for metric in shared]
    return group


def leaves(found: TaskOrGroup) -> list[ConfigurableTask]:
    """The single tasks, in lm-eval's order."""
    return found.get_all_tasks() if isinstance(found, Group) else [found]


def one_by_one(group: Group) -> str:
    """The remedy where a group will not do."""
    names = [str(task.config.task) for task in leaves(group)]
    return f"Name its tasks one by one: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


def shares(total: int, sizes: Sequence[float]) -> list[int]:
    """`total` split in proportion to `sizes`, rounded to the largest remainders (of equal ones the first)."""
    parts = [divmod(total * size, sum(sizes)) for size in sizes]
    lacking = total - int(sum(whole for whole, _ in parts))
    rounded_up = sorted(range(len(sizes)), key=lambda place: -parts[place][1])[:lacking]
    return [int(whole) + (place in rounded_up) for place, (whole, _) in enumerate(parts)]


def _manager(name: str, local: str) -> TaskManager:
    """An index that holds `name`; lm-eval's own tasks are indexed only if the project's do not have all of it."""
    manager = TaskManager(include_path=local, include_defaults=False)
    if not _holds(manager.task_index, name):
        manager = TaskManager(include_path=local)
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f"The nearest are: {', '.join(near)}." if near else "`lm_eval ls tasks` lists all."
        raise LaminaError(f"there is no lm-eval task '{name}'. {hint}")
    return manager


def _files(index: Mapping[str, Any], name: Any, seen: set[str]) -> Iterator[Path]:
    """The files of a task, or of a group or tag with all that it names."""
    entry = index.get(name)
    if entry is None or name in seen:
        return
    seen.add(name)
    if entry.yaml_path is not None:
        yield Path(entry.yaml_path)
    named = task_files.members(entry.cfg) if entry.kind is Kind.GROUP else entry.tags if entry.kind is Kind.TAG else ()
    for each in sorted(named):
        yield from _files(index, each, seen)


def _check_metrics(path: Path, name: str) -> None:
    """lm-eval looks a metric that it does not know up as a script of the hub or of this disk, and runs it."""
    if task_files.is_of_lm_eval(path):
        return
    told = task_files.read(path).told.get("metric_list")
    for metric in told if isinstance(told, list) else ():
        if isinstance(metric, dict) and (metric.get("hf_evaluate") or metric.get("metric") not in metric_registry):
            raise LaminaError(
                f"'{name}': the task file {path} names the metric '{metric.get('metric')}', which is none of "
                "lm-eval's own: it would be a script, which lamina does not run unless told to. If you trust it, write "
                "`trust_code: true` in that entry."
            )


def _holds(index: Mapping[str, Any], name: Any) -> bool:
    """Whether an index has a task, or a group with all that it names."""
    if isinstance(name, dict):  # a task or group written inside its group's file
        return "dataset_path" in name or all(_holds(index, each) for each in _named(name))
    entry = index.get(name)
    if entry is None or entry.kind is not Kind.GROUP:
        return entry is not None
    return all(_holds(index, each) for each in _named(entry.cfg))


def _named(group: Mapping[str, Any]) -> list[Any]:
    named = group.get("task") or [group.get("group")]
    return named if isinstance(named, list) else [named]

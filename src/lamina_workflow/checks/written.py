"""Whether metrics of written answers have questions that a model can answer in writing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lamina.data import task_files
from lamina.options.calibrations import Calibration
from lamina.options.metrics import METRICS
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Maps, Prune, Study
from lamina_workflow.study import requests


def check_written_answers(config: Configuration, root: Path) -> None:
    """Refuse calibrations on which a study counts written answers, and which have none.

    Jobs refuse tasks of which no file says how they are scored.

    Raises LaminaError, which names the calibration.
    """
    checked: set[str] = set()
    for study in config.studies.values():
        for name in _list_answered(config, study):
            if name not in checked:
                _check_calibration(name, config.calibrations[name], root)
                checked.add(name)


def _list_answered(config: Configuration, study: Study) -> Iterator[str]:
    """The calibrations whose questions models answer in writing for a study."""
    if isinstance(study, Maps) and any(METRICS[metric].writes for metric in study.metrics):
        yield from study.calibrations
    if not isinstance(study, Prune):
        return
    for selector in study.selectors:
        metric = config.selectors[selector].metric
        if metric is None or not METRICS[metric].writes:
            continue
        for calibration in study.calibrations:
            yield calibration
            yield from requests.further_calibrations(config, calibration, selector)


def _check_calibration(name: str, entry: Calibration, root: Path) -> None:
    where = f"calibrations.{name}"
    task_files.check_questions(where, entry)
    for task in entry.drawn:
        for keys in task_files.list_task_keys(task, root):
            task_files.check_exact_match(
                where, str(keys["task"]), keys.get("output_type", "generate_until"), _metrics(keys)
            )


def _metrics(keys: Mapping[str, Any]) -> list[str]:
    """The metrics of a task file; exact match for generated answers where it names none."""
    listed = keys.get("metric_list")
    if not listed:
        return ["exact_match"]
    return [str(metric.get("metric")) for metric in listed if isinstance(metric, dict)]

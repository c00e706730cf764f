"""If written answers decide, check that there are questions that a model can answer in writing."""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lamina.data import task_files
from lamina.options.metrics import METRICS
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Maps, Prune, Study
from lamina_workflow.study import requests


class _Asked(NamedTuple):
    """A calibration whose questions are answered in writing."""

    calibration: str
    option: str
    """The key and value that request written answers."""


def check_written_answers(config: Configuration, root: Path) -> None:
    """Refuse calibrations without written answers where a study counts these.

    Tasks whose files do not say how they are scored are left to the jobs.

    Raises LaminaError, whose message names the calibration.
    """
    asked = [item for study in config.studies.values() for item in _list_asked(config, study)]
    for calibration, option in dict.fromkeys(asked):
        where = f"calibrations.{calibration}"
        entry = config.calibrations[calibration]
        task_files.check_questions(where, entry, option)
        for task in entry.drawn:
            for keys in task_files.list_task_keys(task, root):
                kind = keys.get("output_type", "generate_until")
                task_files.check_exact_match(
                    where, str(keys["task"]), kind, _list_metrics(keys), option
                )


def _list_asked(config: Configuration, study: Study) -> Iterator[_Asked]:
    """The calibrations whose questions a study lets models answer in writing."""
    if isinstance(study, Maps):
        for metric, calibration in product(study.metrics, study.calibrations):
            if METRICS[metric].writes:
                yield _Asked(calibration, f"metric: {metric}")
    if not isinstance(study, Prune):
        return
    for name, calibration in product(study.selectors, study.calibrations):
        selector = config.selectors[name]
        if selector.judge_by == "written":
            yield _Asked(selector.judge or calibration, "judge_by: written")
        if selector.metric and METRICS[selector.metric].writes:
            for scored in (calibration, *requests.further_calibrations(config, calibration, name)):
                yield _Asked(scored, f"metric: {selector.metric}")


def _list_metrics(keys: Mapping[str, Any]) -> list[str]:
    """The metrics of a task file; exact match for generated answers where it names none."""
    listed = keys.get("metric_list")
    if not listed:
        return ["exact_match"]
    return [str(metric.get("metric")) for metric in listed if isinstance(metric, dict)]

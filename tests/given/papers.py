"""The numbers of config/papers/expected.csv, and what a configuration measures."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests
from tests import ROOT

EXPECTED = ROOT / "config/papers/expected.csv"
# The columns of `expected.csv` that are not a task's number.
KEYS = (
    "paper",
    "table",
    "of",
    "source",
    "calibration",
    "selector",
    "removed",
    "repair",
    "healing",
    "metric",
)


class Number(NamedTuple):
    """A number that a paper prints, and the variant that it is of."""

    table: str
    source: str
    calibration: str
    recipe: tuple[str, int, str, str]  # selector, removed, repair, healing
    metric: str
    tasks: tuple[str, ...]  # several have the mean of their numbers
    value: float

    def measurements(self) -> list[tuple[Any, ...]]:
        """What must be measured for it, as in `list_measured`."""
        calibrations = [
            task if self.calibration == "own" else self.calibration for task in self.tasks
        ]
        return [
            (self.source, calibration, *self.recipe, task)
            for calibration, task in zip(calibrations, self.tasks, strict=True)
        ]


def list_numbers(paper: str, file: Path = EXPECTED) -> list[Number]:
    """The numbers of a file like `expected.csv` that one paper prints."""
    numbers = []
    with file.open(encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if row["paper"] == paper]
    for row in rows:
        recipe = (row["selector"], int(row["removed"]), row["repair"], row["healing"])
        variant = (row["table"], row["source"], row["calibration"], recipe, row["metric"])
        for tasks in sorted(row.keys() - set(KEYS)):
            if row[tasks]:
                numbers.append(Number(*variant, tuple(tasks.split()), float(row[tasks])))
    return numbers


def list_measured(config: Configuration) -> set[tuple[Any, ...]]:
    """(source, calibration, selector, removed, repair, healing, task) of all that studies measure."""
    measured = set()
    for model, calibration, task, block in requests.benchmark_blocks(config):
        for v in requests.block_variants(config, model, calibration, task, block):
            recipe = (v.selector, v.removed, v.repair, v.healing)
            measured.add((config.models[model].source, calibration, *recipe, task))
    return measured

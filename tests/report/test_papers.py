"""Numbers of papers next to those of a run, against the files in config/papers."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina_workflow.report import answers, database
from tests import ROOT
from tests.given.planted_tables import BASE_KEY
from tests.given.plausible_tables import write_tables

EXPECTED = ROOT / "config/papers/expected.csv"
# The columns of `expected.csv` that are not a task's number.
KEYS = (
    "paper",
    "table",
    "source",
    "calibration",
    "selector",
    "removed",
    "repair",
    "healing",
    "metric",
)
SOURCE = "meta-llama/Meta-Llama-3-8B"
MODEL = dict(model="mine", source=SOURCE, n_layers=32)
# The nine tasks of table 2 in arXiv:2605.15491.
NINE_TASKS = "arc_challenge arc_easy boolq copa hellaswag openbookqa race rte winogrande".split()


def comparison_rows(folder: Path, benchmarks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a run of the model with these benchmarks answers to `what_papers_report`."""
    files = write_tables(folder, models=[MODEL], benchmarks=benchmarks)
    connection = database.connect_views(ROOT / "sql/views.sql", files)
    return answers.answer_question(connection, "what_papers_report")


def test_a_run_is_compared_with_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1 has .7496 for ARC-easy by accuracy, .8102 for the base, .4957 for ARC-challenge."""
    measured = dict(
        metric="acc_norm",
        stderr=0.01,
        n_samples=2000,
        n_shot=0,
        higher_is_better=True,
        task_version="1",
    )
    base = BASE_KEY | measured | dict(model="mine")
    pruned = base | dict(calibration="arc_easy", selector="accuracy", removed=8)
    benchmarks = [
        base | dict(task="arc_easy", value=0.78),
        pruned | dict(task="arc_easy", value=0.76),
        pruned | dict(task="arc_challenge", value=0.5137),
        pruned | dict(task="arc_easy", value=0.9, repair="ghost"),
        pruned | dict(task="sciq", value=0.9),
    ]
    monkeypatch.chdir(tmp_path)  # a workflow in another folder uses lamina as a module

    rows = comparison_rows(tmp_path, benchmarks)

    numbers = [
        (row["table_number"], row["removed"], row["task"], row["published"], row["within"])
        for row in rows
    ]
    assert numbers == [
        (1, 0, "arc_easy", 0.8102, False),
        (1, 8, "arc_easy", 0.7496, True),
        (7, 8, "arc_challenge", 0.5137, True),
        (7, 8, "arc_easy", 0.7496, True),
    ]
    assert rows[1]["difference"] == pytest.approx(0.0104)


def test_a_mean_over_the_tasks_of_a_table_is_compared_in_the_papers_metric(tmp_path: Path) -> None:
    """Table 2 has .6010 for nine tasks; a repair that was tried on eight of them has no row."""
    measured = dict(stderr=0.03, n_samples=100, n_shot=0, higher_is_better=True, task_version="1")
    base = BASE_KEY | measured | dict(model="mine")
    pruned = base | dict(calibration="c4", selector="streamline", removed=7)
    benchmarks = []
    for metric, first_value in (("acc", 0.51), ("acc_norm", 1.51)):
        for task_index, task in enumerate(NINE_TASKS):
            score = dict(task=task, metric=metric, value=first_value + 0.02 * task_index)
            benchmarks.append(base | score)
            benchmarks.append(pruned | score | dict(repair="ghost"))
            if task_index > 0:
                benchmarks.append(pruned | score | dict(repair="linearpatch"))

    rows = comparison_rows(tmp_path, benchmarks)

    [mean] = [row for row in rows if row["paper"] == "2605.15491"]
    assert mean["table_number"] == 2
    assert mean["repair"] == "ghost"
    assert mean["task"] == " ".join(NINE_TASKS)
    assert mean["metric"] == "acc"
    assert mean["published"] == 0.6010
    assert mean["within"]
    assert mean["n_samples"] == 900
    assert mean["ours"] == pytest.approx(0.59)
    assert mean["stderr"] == pytest.approx(0.01)


def test_a_mean_with_an_unknown_error_has_none(tmp_path: Path) -> None:
    """The error of eight of nine tasks is not the error of their mean."""
    pruned = BASE_KEY | dict(
        model="mine", calibration="c4", selector="streamline", removed=7, repair="ghost"
    )
    measured = pruned | dict(metric="acc", value=0.6, n_samples=100, higher_is_better=True)
    benchmarks = [measured | dict(task=task, stderr=0.03) for task in NINE_TASKS]
    benchmarks[0]["stderr"] = None

    rows = comparison_rows(tmp_path, benchmarks)

    [mean] = [row for row in rows if row["task"] == " ".join(NINE_TASKS)]
    assert mean["ours"] == pytest.approx(0.6)
    assert mean["stderr"] is None
    assert mean["within"] is None


@pytest.mark.parametrize("paper", ["rethinking-layer-relevance", "ghosted-layers"])
def test_every_number_is_of_a_variant_that_a_configuration_asks_for(paper: str) -> None:
    """By the names in config/papers; numbers are shares above chance of four choices less noise."""
    text = (ROOT / f"config/papers/{paper}.yaml").read_text(encoding="utf-8")
    configuration = yaml.safe_load(text)
    sources = {entry["source"] for entry in configuration["models"].values()}
    tasks = configuration["benchmarks"]["tasks"].keys()
    second_line = text.splitlines()[1]  # names the paper
    with EXPECTED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] in second_line]

    assert rows
    for row in rows:
        numbers = {name: float(row[name]) for name in row if name not in KEYS and row[name]}
        assert numbers
        assert all(0.19 <= number <= 0.9 for number in numbers.values())
        assert set(" ".join(numbers).split()) == tasks
        assert row["source"] in sources
        assert int(row["removed"]) in {0, 7, 8, 11, 16, 24}
        assert row["calibration"] in {"own", "none", *configuration["calibrations"]}
        assert row["selector"] in {"none", *configuration["selectors"]}
        assert row["repair"] in {"none", *configuration.get("repairs", ())}
        assert row["healing"] in {"none", *configuration["healings"]}

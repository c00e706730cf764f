"""Numbers of papers beside those of a run."""

import csv
from pathlib import Path

import pytest
import yaml

from lamina_workflow.report import answers, database
from tests import ROOT
from tests.given.plausible_tables import write_tables

EXPECTED = ROOT / "config/papers/expected.csv"
VARIANT = (
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


def numbers() -> list[dict[str, str]]:
    with EXPECTED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_is_compared_with_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1 has .7496 for ARC-easy by accuracy, .8102 for the base, and .4957 for ARC-challenge."""
    base = dict(
        model="mine", calibration="none", selector="none", removed=0, repair="none", healing="none"
    )
    cut = base | dict(calibration="arc_easy", selector="accuracy", removed=8)
    told = dict(
        metric="acc_norm",
        stderr=0.01,
        n_samples=2000,
        n_shot=0,
        higher_is_better=True,
        task_version="1",
    )
    files = write_tables(
        tmp_path,
        models=[dict(model="mine", source=SOURCE, n_layers=32)],
        benchmarks=[
            base | told | dict(task="arc_easy", value=0.78),
            cut | told | dict(task="arc_easy", value=0.76),
            cut | told | dict(task="arc_challenge", value=0.5137),
            cut | told | dict(task="arc_easy", value=0.9, repair="ghost"),
            cut | told | dict(task="sciq", value=0.9),
        ],
    )
    monkeypatch.chdir(tmp_path)  # a workflow of another folder uses lamina as a module
    found = answers.answer_question(
        database.connect_views(ROOT / "sql/views.sql", files), "what_papers_report"
    )
    wanted = [(1, 0, "arc_easy", 0.8102, False), (1, 8, "arc_easy", 0.7496, True)]
    wanted += [(7, 8, "arc_challenge", 0.5137, True), (7, 8, "arc_easy", 0.7496, True)]
    assert [
        tuple(row[name] for name in ("table_number", "removed", "task", "published", "within"))
        for row in found
    ] == wanted
    assert found[1]["difference"] == pytest.approx(0.0104)


def test_a_mean_over_the_tasks_of_a_table_is_compared_in_the_papers_metric(tmp_path: Path) -> None:
    """Table 2 has .6010 for nine tasks; the run with eight of them has no row."""
    names = "arc_challenge arc_easy boolq copa hellaswag openbookqa race rte winogrande".split()
    cut = dict(
        model="mine", calibration="c4", selector="streamline", removed=7, healing="none", n_shot=0
    )
    told = cut | dict(stderr=0.03, n_samples=100, higher_is_better=True, task_version="1")
    rows = [
        told
        | dict(
            task=task, repair=repair, metric=metric, value=0.51 + 0.02 * n + (metric == "acc_norm")
        )
        for repair, tasks in (("ghost", names), ("linearpatch", names[1:]))
        for n, task in enumerate(tasks)
        for metric in ("acc", "acc_norm")
    ]
    rows += [
        row | dict(removed=0, calibration="none", selector="none", repair="none")
        for row in rows[:18]
    ]
    models = [dict(model="mine", source=SOURCE, n_layers=32)]
    connection = database.connect_views(
        ROOT / "sql/views.sql", write_tables(tmp_path, models=models, benchmarks=rows)
    )
    rows = answers.answer_question(connection, "what_papers_report")
    [found] = [row for row in rows if row["paper"] == "2605.15491"]
    assert (found["table_number"], found["repair"], found["task"], found["metric"]) == (
        2,
        "ghost",
        " ".join(names),
        "acc",
    )
    assert (found["published"], found["within"], found["n_samples"]) == (0.6010, True, 900)
    assert found["ours"] == pytest.approx(0.59) and found["stderr"] == pytest.approx(0.01)


def test_a_mean_with_an_unknown_error_has_none(tmp_path: Path) -> None:
    """It was divided by the number of known errors, and an agreement was told of a part."""
    names = "arc_challenge arc_easy boolq copa hellaswag openbookqa race rte winogrande".split()
    cut = dict(model="mine", calibration="c4", selector="streamline", removed=7, repair="ghost")
    told = cut | dict(healing="none", metric="acc", value=0.6, n_samples=100, higher_is_better=True)
    rows = [told | dict(task=task, stderr=0.03 if n else None) for n, task in enumerate(names)]
    models = [dict(model="mine", source=SOURCE, n_layers=32)]
    connection = database.connect_views(
        ROOT / "sql/views.sql", write_tables(tmp_path, models=models, benchmarks=rows)
    )
    found = {row["task"]: row for row in answers.answer_question(connection, "what_papers_report")}
    mean = found[" ".join(names)]
    assert mean["ours"] == pytest.approx(0.6)
    assert mean["stderr"] is None and mean["within"] is None


@pytest.mark.parametrize("paper", ["rethinking-layer-relevance", "ghosted-layers"])
def test_every_number_is_of_a_variant_that_a_configuration_asks_for(paper: str) -> None:
    """By the names of config/papers, and shares between chance of four choices, less noise, and one."""
    file = ROOT / f"config/papers/{paper}.yaml"
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    sources, tasks = (
        {entry["source"] for entry in raw["models"].values()},
        raw["benchmarks"]["tasks"].keys(),
    )
    rows = [
        row for row in numbers() if row["paper"] in file.read_text(encoding="utf-8").split("\n")[1]
    ]
    assert rows
    for row in rows:
        given = {name: float(value) for name, value in row.items() if name not in VARIANT and value}
        assert given and all(0.19 <= value <= 0.9 for value in given.values())
        assert {task for name in given for task in name.split()} == tasks
        assert row["source"] in sources and int(row["removed"]) in {0, 7, 8, 11, 16, 24}
        assert row["calibration"] in raw["calibrations"].keys() | {"own", "none"}
        assert row["selector"] in raw["selectors"].keys() | {"none"}
        assert row["repair"] in {"none", *raw.get("repairs", ())} and row["healing"] in {
            "none",
            *raw["healings"],
        }

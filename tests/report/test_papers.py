"""Numbers of papers next to those of a run, against the files in config/papers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_workflow.checks.load import load_configuration
from lamina_workflow.papers.study import PAPERS, read_paper
from lamina_workflow.report import answers, database
from tests import ROOT
from tests.given.papers import EXPECTED, list_measured, list_numbers
from tests.given.planted_tables import BASE_KEY
from tests.given.plausible_tables import write_tables

NAMES = {paper: name for name, paper in PAPERS.items()}
SOURCE = "meta-llama/Meta-Llama-3-8B"
MODEL = dict(model="mine", source=SOURCE, n_layers=32)
# The nine tasks of table 2 in arXiv:2605.15491.
NINE_TASKS = "arc_challenge arc_easy boolq copa hellaswag openbookqa race rte winogrande".split()


def comparison_rows(
    folder: Path, benchmarks: list[dict[str, Any]], plans: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """What a run of the model with these benchmarks answers to `what_papers_report`."""
    files = write_tables(folder, models=[MODEL], benchmarks=benchmarks, plans=plans or [])
    connection = database.connect_views(files)
    return answers.answer_question(connection, "what_papers_report")


def test_a_run_is_compared_with_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tables print .7496 for ARC-easy by accuracy and .8102 for the base model."""
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
        (row["table"], row["removed"], row["task"], row["published"], row["within"]) for row in rows
    ]
    assert numbers == [
        (1, 0, "arc_easy", 0.8102, False),
        (1, 8, "arc_easy", 0.7496, True),
        (2, 0, "arc_easy", 0.8102, False),
        (2, 8, "arc_challenge", 0.5137, True),
        (2, 8, "arc_easy", 0.7496, True),
        (5, 0, "arc_easy", 0.8102, False),
        (5, 8, "arc_easy", 0.7496, True),
        (6, 0, "arc_easy", 0.8102, False),
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
    assert mean["table"] == 2
    assert mean["repair"] == "ghost"
    assert mean["task"] == " ".join(NINE_TASKS)
    assert mean["metric"] == "acc"
    assert mean["published"] == 0.6010
    assert mean["within"]
    assert mean["n_samples"] == 900
    assert mean["ours"] == pytest.approx(0.59)
    assert mean["stderr"] == pytest.approx(0.01)


def test_a_file_with_one_number_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of other tasks are empty, as beside the study of `lamina paper --small`."""
    columns = (
        "paper,table,of,source,calibration,selector,removed,repair,healing,metric,arc_easy,boolq"
    )
    row = f"2605.14075,1,LLaMA-3-8B,{SOURCE},none,none,0,none,none,,,0.8202"
    file = tmp_path / "config/papers/expected.csv"
    file.parent.mkdir(parents=True)
    file.write_text(f"{columns}\n{row}\n")
    measured = dict(metric="acc", value=0.8, stderr=0.02, n_samples=50, higher_is_better=True)
    monkeypatch.chdir(tmp_path)

    [number] = comparison_rows(tmp_path, [BASE_KEY | measured | dict(model="mine", task="boolq")])

    assert (number["task"], number["published"], number["within"]) == ("boolq", 0.8202, True)


def test_a_file_without_a_number_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paper that prints figures alone has only the line of columns."""
    file = tmp_path / "config/papers/expected.csv"
    file.parent.mkdir(parents=True)
    file.write_text(EXPECTED.read_text(encoding="utf-8").splitlines()[0] + "\n")
    monkeypatch.chdir(tmp_path)

    assert comparison_rows(tmp_path, []) == []


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


def test_five_random_draws_are_compared_as_their_mean(tmp_path: Path) -> None:
    """Table 10 has .1972 for ARC-easy without 16 random layers, as a mean over five seeds."""
    measured = dict(metric="acc_norm", stderr=0.03, n_samples=200, higher_is_better=True)
    values = [0.16, 0.18, 0.20, 0.22, 0.24]
    draws = ["random", *(f"random.{number}" for number in range(2, 6))]
    variants = [
        BASE_KEY | dict(model="mine", calibration="arc_easy", selector=draw, removed=16)
        for draw in draws
    ]
    benchmarks = [BASE_KEY | measured | dict(model="mine", task="arc_easy", value=0.8)]
    plans = []
    for variant, value in zip(variants, values, strict=True):
        benchmarks.append(variant | measured | dict(task="arc_easy", value=value))
        plan_key = {name: variant[name] for name in ("model", "calibration", "selector", "removed")}
        plans.append(plan_key | dict(unit="3", replicate_of="random"))

    rows = comparison_rows(tmp_path, benchmarks, plans)

    [mean] = [row for row in rows if row["removed"] == 16]
    assert (mean["table"], mean["selector"]) == (10, "random")
    assert mean["ours"] == pytest.approx(np.mean(values))
    assert mean["stderr"] == pytest.approx((0.03**2 + np.var(values, ddof=1) / 5) ** 0.5)
    assert mean["within"]


@pytest.mark.parametrize("paper", ["2605.14075", "2605.15491"])
def test_every_number_is_of_a_variant_that_a_configuration_measures(paper: str) -> None:
    """Source, calibration, selector, size, repair, healing and task of each are in its studies."""
    config = load_configuration(read_paper(NAMES[paper]), ROOT)
    measured = list_measured(config)

    numbers = list_numbers(paper)

    assert numbers
    for number in numbers:
        missing = set(number.measurements()) - measured
        assert not missing, f"config/papers/{NAMES[paper]}.yaml does not measure {number}"


@pytest.mark.parametrize("paper", ["2605.14075", "2605.15491"])
def test_numbers_are_shares_or_perplexities_with_their_table(paper: str) -> None:
    for number in list_numbers(paper):
        assert int(number.table) > 0
        if number.metric == "perplexity":
            assert number.value > 1
        else:
            assert 0.19 <= number.value <= 0.9


def test_a_paper_without_a_table_of_scores_has_no_number() -> None:
    """arXiv 2403.17887 prints figures only."""
    assert list_numbers("2403.17887") == []

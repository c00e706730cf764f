"""What was changed is measured anew, whatever hides it: times, or an edit while a job runs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import study
from tests.faults.study import rewrite, set_time, wait_until
from tests.pipeline.project import Project, rules_of

pytestmark = pytest.mark.slow

YEAR_2001 = 10**18  # nanoseconds
YEAR_2096 = 4 * 10**18
# What these rules make depends on none of the changes.
UNTOUCHED_RULES = {"prepare_model", "prepare_calibration", "sweep_units", "prune_step"}


@dataclass(frozen=True)
class Change:
    """A text in a file and what replaces it, and the rule that must run for it."""

    file: str
    old_text: str
    new_text: str
    rule: str


# Each change reaches rows that the others do not.
CHANGES = {
    "questions of a benchmark": Change(
        "data/test.jsonl", '"gold": 1', '"gold": 0', "benchmark_task"
    ),
    "data of a task file": Change("data/asked.jsonl", '"gold": 0', '"gold": 1', "benchmark_task"),
    "a file that it includes": Change(
        "workflow/tasks/asked_form.txt", '" "', '": "', "prepare_task"
    ),
    "a function that it names": Change(
        "workflow/tasks/asked_words.py", '["query"]', '["query"] + ","', "prepare_task"
    ),
    "an option": Change(study.CONFIG, "method: ghost", "method: ghost, bias: true", "fit_patch"),
    "code": Change(
        "src/lamina/healing/batches.py",
        "VALIDATION_SHARE = 0.15",
        "VALIDATION_SHARE = 0.3",
        "heal_variant",
    ),
}


def make_change(project: Project, change: Change, time_ns: int | None = None) -> None:
    """Change a file, with a time of its own or that of the earlier content."""
    path = project.folder / change.file
    text = path.read_text()
    assert change.old_text in text
    rewrite(path, text.replace(change.old_text, change.new_text), time_ns)


def make_changes(project: Project, time_ns: int | None = None) -> None:
    for change in CHANGES.values():
        make_change(project, change, time_ns)


@pytest.fixture(scope="module")
def undisturbed_with_changes(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study with all changes, run for the first time."""
    project = study.write_study(tmp_path_factory.mktemp("changed") / "undisturbed")
    make_changes(project)
    project.run(*study.TABLES)
    return project


@pytest.fixture(scope="module")
def shared_copy(undisturbed: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the finished study in which each test undoes its change."""
    return study.copy_study(undisturbed, tmp_path_factory.mktemp("edited") / "study")


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_alone_makes_its_rule_stale(name: str, shared_copy: Project) -> None:
    change = CHANGES[name]
    path = shared_copy.folder / change.file
    text_before = path.read_text()
    time_before = path.stat().st_mtime_ns

    make_change(shared_copy, change, YEAR_2001)
    stale_rules = rules_of(shared_copy.stale())
    rewrite(path, text_before, time_before)

    assert change.rule in stale_rules
    assert not stale_rules & UNTOUCHED_RULES


def assert_changes_are_seen(project: Project) -> None:
    stale_rules = rules_of(project.stale())
    assert {change.rule for change in CHANGES.values()} <= stale_rules
    assert not stale_rules & UNTOUCHED_RULES


def test_changes_with_an_older_time_are_seen(finished: Project) -> None:
    make_changes(finished, YEAR_2001)
    assert_changes_are_seen(finished)


def test_changes_with_the_same_time_are_seen(finished: Project) -> None:
    make_changes(finished)
    assert_changes_are_seen(finished)


def test_changes_before_results_of_the_future_are_seen(finished: Project) -> None:
    for path in (finished.folder / "results").rglob("*"):
        set_time(path, YEAR_2096)
    make_changes(finished)
    assert_changes_are_seen(finished)


def test_a_changed_study_gives_what_a_first_run_of_it_gives(
    finished: Project, undisturbed_with_changes: Project
) -> None:
    make_changes(finished, YEAR_2001)
    finished.run(*study.TABLES)
    study.assert_equal_tables(finished, undisturbed_with_changes)


def test_the_library_of_another_folder_is_refused(undisturbed: Project, finished: Project) -> None:
    other_library = str(undisturbed.folder / "src")
    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--configfile", str(finished.config)],
        cwd=finished.folder,
        env=os.environ | {"PYTHONPATH": other_library},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode != 0
    assert "Traceback" not in run.stderr
    assert str(finished.folder) in run.stderr
    assert f"the library that Python found is that of {undisturbed.folder}: " in run.stderr
    assert "`export PYTHONPATH=" in run.stderr
    assert "`rm -r .venv`" in run.stderr


def swap_choices(path: Path) -> None:
    """Reverse the choices of every question, and hide it: the file keeps its time."""
    time_before = path.stat().st_mtime_ns
    lines = []
    for line in path.read_text().splitlines():
        question = json.loads(line)
        question["choices"].reverse()
        lines.append(json.dumps(question) + "\n")
    path.write_text("".join(lines))
    set_time(path, time_before)


@dataclass(frozen=True)
class EditWhileRunning:
    """A target that is made again, a file that is edited while a calibration is prepared, and the message."""

    target: str
    file: str
    edit: Callable[[Path], None]
    message: str


CALIBRATION = "results/calibrations/reference/own.parquet"
EDITS_WHILE_RUNNING = {
    "questions": EditWhileRunning(
        target=CALIBRATION,
        file="data/own.jsonl",
        edit=swap_choices,
        message="changed after the run began",
    ),
    "weights": EditWhileRunning(
        target="results/sweeps/reference/own/base/removal/layer/removed=0.parquet",
        file="model/model.safetensors",
        edit=study.flip_bit,
        message="changed after it was prepared",
    ),
}


@pytest.mark.parametrize("name", EDITS_WHILE_RUNNING)
def test_a_file_that_changes_before_its_job_reads_it_is_refused(
    name: str, undisturbed: Project, finished: Project
) -> None:
    case = EDITS_WHILE_RUNNING[name]
    file = finished.folder / case.file
    logs = finished.folder / "logs/prepare_calibration"
    content_before = file.read_bytes()
    time_before = file.stat().st_mtime_ns
    for target in {CALIBRATION, case.target}:
        (finished.folder / target).unlink()
    shutil.rmtree(logs)

    run = finished.start(case.target)
    wait_until(lambda: any(path.is_file() for path in logs.rglob("*")))  # its shell has begun
    case.edit(file)
    output, _ = run.communicate(timeout=120)

    assert run.returncode != 0
    assert case.message in output
    assert case.file.split("/")[0] in output
    assert not (finished.folder / case.target).exists()

    file.write_bytes(content_before)
    set_time(file, time_before)
    finished.run(*study.TABLES)
    study.assert_equal_tables(finished, undisturbed)

"""What was changed is measured anew, whatever hides it: times, an edit in the meantime."""

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
from tests.faults.study import replace, until
from tests.pipeline.project import Project

pytestmark = pytest.mark.slow

LONG_AGO, FAR_OFF = 10**18, 4 * 10**18
# None of the changes reaches what these rules make.
UNTOUCHED = {"prepare_model", "prepare_calibration", "sweep_units", "prune_step"}


@dataclass(frozen=True)
class Change:
    """A text of a file that another takes the place of, and what must be made anew for it."""

    file: str
    old: str
    new: str
    rule: str


# None hides another: each reaches rows that the others do not.
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
        "src/lamina/healing/training.py",
        "VALIDATION_SHARE = 0.15",
        "VALIDATION_SHARE = 0.3",
        "heal_variant",
    ),
}


def apply(project: Project, change: Change, time_ns: int | None = None) -> None:
    path = project.folder / change.file
    text = path.read_text()
    assert change.old in text
    replace(path, text.replace(change.old, change.new), time_ns)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study with all changes, run for the first time."""
    project = study.made(tmp_path_factory.mktemp("changed") / "undisturbed")
    for change in CHANGES.values():
        apply(project, change)
    project.run(*study.TABLES)
    return project


def older(project: Project) -> None:
    for change in CHANGES.values():
        apply(project, change, LONG_AGO)


def same_time(project: Project) -> None:
    for change in CHANGES.values():
        apply(project, change)


def before_outputs_of_the_future(project: Project) -> None:
    for path in (project.folder / "results").rglob("*"):
        os.utime(path, ns=(FAR_OFF, FAR_OFF))
    for change in CHANGES.values():
        apply(project, change)


HIDDEN = [older, same_time, before_outputs_of_the_future]


def rules(project: Project) -> set[str]:
    return {job.rule for job in project.stale()}


@pytest.fixture(scope="module")
def edited(undisturbed: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy whose files each test puts back."""
    return study.copied(undisturbed, tmp_path_factory.mktemp("edited") / "study")


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen_by_itself(name: str, edited: Project) -> None:
    path = edited.folder / CHANGES[name].file
    before, mtime = path.read_text(), path.stat().st_mtime_ns
    apply(edited, CHANGES[name], LONG_AGO)
    found = rules(edited)
    replace(path, before, mtime)
    assert CHANGES[name].rule in found and not found & UNTOUCHED


@pytest.mark.parametrize("hide", HIDDEN)
def test_nothing_hides_a_change(
    hide: Callable[[Project], None], finished: Callable[[], Project]
) -> None:
    project = finished()
    hide(project)
    found = rules(project)
    assert found >= {change.rule for change in CHANGES.values()} and not found & UNTOUCHED


def test_changed_studies_are_as_if_never_anything_else(
    finished: Callable[[], Project], changed: Project
) -> None:
    project = finished()
    older(project)
    project.run(*study.TABLES)
    study.equal(project, changed)


def test_a_library_of_another_folder_is_refused(
    undisturbed: Project, finished: Callable[[], Project]
) -> None:
    project = finished()
    environment = os.environ | {"PYTHONPATH": str(undisturbed.folder / "src")}
    command = [sys.executable, "-m", "snakemake", "-n", "--configfile", str(project.config)]
    done = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "Traceback" not in done.stderr
    for said in (
        str(project.folder),
        str(undisturbed.folder / "src"),
        "`export PYTHONPATH=",
        "`rm -r .venv`",
    ):
        assert said in done.stderr


def test_files_that_change_while_read_are_refused(
    undisturbed: Project, finished: Callable[[], Project]
) -> None:
    """A calibration, before its job begins; the weights, before the sweep does."""
    project = finished()
    made = "results/calibrations/reference/own.parquet"
    sweep = "results/sweeps/reference/own/base/removal/layer/removed=0.parquet"
    edits: dict[str, tuple[str, str, Callable[[Path], None], str]] = {
        made: (
            "data/own.jsonl",
            "prepare_calibration",
            _swap_choices,
            "is not what it was when the run began",
        ),
        sweep: (
            "model/model.safetensors",
            "sweep_units",
            study.flip,
            "not what they were when it was prepared",
        ),
    }
    for target, (name, rule, edit, said) in edits.items():
        file, logs = project.folder / name, project.folder / "logs" / rule
        kept, before = file.read_bytes(), file.stat().st_mtime_ns
        (project.folder / target).unlink()
        shutil.rmtree(logs)
        run = project.started(target)
        until(
            lambda logs=logs: any(path.is_file() for path in logs.rglob("*"))
        )  # its shell has begun
        edit(file)
        os.utime(file, ns=(before, before))
        output, _ = run.communicate(timeout=120)
        assert run.returncode != 0 and said in output and name.split("/")[0] in output
        assert not (project.folder / target).exists()
        file.write_bytes(kept)
        os.utime(file, ns=(before, before))
    project.run(*study.TABLES)
    study.equal(project, undisturbed)


def _swap_choices(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({**line, "choices": line["choices"][::-1]}) + "\n" for line in lines)
    )

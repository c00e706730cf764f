"""A run that is killed leaves a folder that says what to do, and ends as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from lamina.runtime import commands
from tests.faults import study
from tests.pipeline.project import Project

UNLOCK = [sys.executable, "-m", "lamina.runtime.runs"]


@pytest.fixture
def begun(finished: Callable[[], Project]) -> Project:
    """The study with all that follows its plans still to do."""
    project = finished()
    for part in ("patches", "adapters", "benchmarks", "tables"):
        shutil.rmtree(project.folder / "results" / part)
    shutil.rmtree(project.folder / "logs")
    return project


def at_work(project: Project, rule: str, *targets: str) -> "subprocess.Popen[str]":
    """A run, one job of which is at work."""
    run = project.started(*targets)
    study.until(lambda: (project.folder / "logs" / rule).is_dir())
    return run


def test_a_killed_run_is_unlocked_and_goes_on_and_a_living_one_is_left_alone(
    begun: Project, undisturbed: Project
) -> None:
    environment = os.environ | {"PYTHONPATH": str(begun.folder / "src")}
    run = at_work(begun, "fit_patch", *study.TABLES)
    other = begun.run(*study.TABLES, check=False).stdout
    unlocked = subprocess.run(UNLOCK, cwd=begun.folder, env=environment, capture_output=True, text=True, check=False)
    for said in (other, unlocked.stderr):
        assert f"it is at work as process {run.pid}: stop it with `kill -INT {run.pid}`" in said
        assert "Traceback" not in said
    run.kill()
    run.communicate()
    after = begun.run(*study.TABLES, check=False)
    assert after.returncode != 0 and "Traceback" not in after.stdout
    assert f"{begun.folder} is locked by a run that has ended without a word" in after.stdout
    assert "Write `make unlock`" in after.stdout and "--unlock argument" not in after.stdout
    subprocess.run(UNLOCK, cwd=begun.folder, env=environment, check=True)  # what `make unlock` does
    begun.run("--unlock")
    begun.run("--rerun-incomplete", *study.TABLES)
    study.equal(begun, undisturbed)


@pytest.mark.skipif(not commands.can_be_warm(), reason="forks of a parent are for Linux without a GPU")
def test_a_run_whose_jobs_parents_are_killed_ends_well_when_it_is_started_again(
    finished: Callable[[], Project], undisturbed: Project
) -> None:
    project = finished()
    shutil.rmtree(project.folder / "results/benchmarks")
    shutil.rmtree(project.folder / "logs")
    run = at_work(project, "benchmark_task", *study.BENCHMARKS)
    for pid in _below(run.pid):
        os.kill(pid, signal.SIGKILL)
    output, _ = run.communicate()
    if run.returncode:
        assert "the parent of this job has gone" in output and "The first failure, in rule" in output
        project.run("--rerun-incomplete", *study.TABLES)
    study.equal(project, undisturbed)


def _below(pid: int) -> list[int]:
    """The processes that a run has started, without the shells of its jobs."""
    known = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in known.splitlines()[1:]]
    found, waiting = [], [str(pid)]
    while waiting:
        parent = waiting.pop()
        children = [row for row in rows if row[1] == parent]
        waiting += [row[0] for row in children]
        found += [int(row[0]) for row in children if "lamina.runtime" in row[2] and "bash" not in row[2]]
    return found

"""A run that is killed leaves a folder that says what to do, and ends as if nothing had happened."""

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.faults import study
from tests.pipeline.project import Project

pytestmark = pytest.mark.slow


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


def test_a_killed_run_is_unlocked_and_goes_on(begun: Project, undisturbed: Project) -> None:
    run = at_work(begun, "fit_patch", *study.TABLES)
    run.kill()
    run.communicate()
    after = begun.run(*study.TABLES, check=False)
    assert after.returncode != 0 and "Traceback" not in after.stdout and "--unlock" in after.stdout
    begun.run("--unlock")  # what `make unlock` does
    begun.run("--rerun-incomplete", *study.TABLES)
    study.equal(begun, undisturbed)

"""A run that is killed says what to do, and ends then as if nothing had happened."""

import shutil

import pytest

from tests.faults import study
from tests.pipeline.project import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def half_finished(finished: Project) -> Project:
    """The study with all that follows its plans still to do."""
    for name in ("patches", "adapters", "benchmarks", "tables"):
        shutil.rmtree(finished.folder / "results" / name)
    shutil.rmtree(finished.folder / "logs")
    return finished


def test_a_killed_run_is_unlocked_and_goes_on(half_finished: Project, undisturbed: Project) -> None:
    run = half_finished.start(*study.TABLES)
    study.wait_until(lambda: (half_finished.folder / "logs/fit_patch").is_dir())
    run.kill()
    run.communicate()

    locked_run = half_finished.run(*study.TABLES, check=False)
    assert locked_run.returncode != 0
    assert "--unlock" in locked_run.stdout
    assert "Traceback" not in locked_run.stdout

    half_finished.run("--unlock")  # what `make unlock` does
    half_finished.run("--rerun-incomplete", *study.TABLES)
    study.assert_equal_tables(half_finished, undisturbed)

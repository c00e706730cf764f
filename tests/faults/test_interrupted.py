"""A run that is killed ends, when it is started again, as if nothing had happened."""

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


def test_a_killed_run_goes_on(half_finished: Project, undisturbed: Project) -> None:
    """As `make run` and `lamina run` start it, without Snakemake's own lock."""
    run = half_finished.start(*study.TABLES)
    study.wait_until(lambda: (half_finished.folder / "logs/fit_patch").is_dir())
    run.kill()
    run.communicate()

    half_finished.run("--nolock", *study.TABLES)
    study.assert_equal_tables(half_finished, undisturbed)

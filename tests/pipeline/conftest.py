"""One run of the tiny study, shared by the tests that look at it."""

import shutil
from collections.abc import Iterator

import pytest

from tests.pipeline.project import Project, copy_project


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny study, run in a copy of the project as far as its tables."""
    project = copy_project(tmp_path_factory.mktemp("tiny"), "tests/configs/tiny.yaml")
    project.run("results/tables/jobs.parquet")  # which is made after all other tables
    return project


@pytest.fixture(scope="session")
def finished(measured: Project) -> Project:
    """The tiny study, run to the end, with its figures and its report."""
    measured.run()
    return measured


@pytest.fixture
def restored(finished: Project) -> Iterator[Project]:
    """The finished study, whose code a test may edit: it is restored afterwards."""
    with finished.restored():
        yield finished


@pytest.fixture(scope="module")
def moved(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The finished study in another folder, for tests that run it again.

    Only its report was made anew.
    """
    folder = tmp_path_factory.mktemp("moved") / "clone"
    shutil.copytree(finished.folder, folder, symlinks=True)
    project = Project(folder, folder / finished.config.relative_to(finished.folder))
    project.run()
    return project

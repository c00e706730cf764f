"""One finished run of the tiny study, shared by the tests that look at it."""

import pytest

from tests.pipeline.project import Project, copy_project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny study, run to the end in a copy of the project."""
    project = copy_project(tmp_path_factory.mktemp("tiny"), "tests/configs/tiny.yaml")
    project.run()
    return project

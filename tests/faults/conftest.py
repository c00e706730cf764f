"""Undisturbed runs, which runs with faults are compared with."""

from pathlib import Path

import pytest

from tests.faults import study
from tests.pipeline.project import Project


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study, run to the end."""
    project = study.write_study(tmp_path_factory.mktemp("faults") / "undisturbed")
    project.run(*study.TABLES)
    return project


@pytest.fixture
def finished(undisturbed: Project, tmp_path: Path) -> Project:
    """A copy of it, for one test."""
    return study.copy_study(undisturbed, tmp_path / "study")

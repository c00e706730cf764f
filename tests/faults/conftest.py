"""Undisturbed runs, which faults are compared with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import study
from tests.pipeline.project import Project


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study, run to the end."""
    project = study.made(tmp_path_factory.mktemp("faults") / "undisturbed")
    project.run(*study.TABLES)
    return project


@pytest.fixture
def finished(undisturbed: Project, tmp_path: Path) -> Callable[[], Project]:
    """A copy of it."""
    return lambda: study.copied(undisturbed, tmp_path / "study")

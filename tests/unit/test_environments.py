"""However lamina is installed, the versions are those of requirements.lock."""

import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.pipeline.project import copy_project
from tests.unit.configurations import REPOSITORY


def locked() -> list[str]:
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    return sorted(line for line in lines if line and not line.startswith("#"))


def test_the_conda_environment_pins_what_the_lock_pins() -> None:
    environment = yaml.safe_load((REPOSITORY / "envs/lamina.yaml").read_text())
    pinned = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert sorted(pinned) == locked()


def test_environments_bring_a_python_that_the_project_allows() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    environment = yaml.safe_load((REPOSITORY / "envs/lamina.yaml").read_text())
    assert "python=3.11" in environment["dependencies"]
    assert "FROM docker.io/library/python:3.11-slim" in (REPOSITORY / "envs/Containerfile").read_text()


def test_the_container_installs_the_lock_itself() -> None:
    assert "--requirement /requirements.lock" in (REPOSITORY / "envs/Containerfile").read_text()


def test_commands_of_rules_run_with_the_python_of_ones_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's would, a `python` in LAMINA_BIN takes the place of the interpreter that runs Snakemake."""
    chosen = tmp_path / "bin"
    chosen.mkdir()
    (chosen / "python").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/called\nexec {sys.executable} "$@"\n')
    (chosen / "python").chmod(0o755)
    monkeypatch.setenv("LAMINA_BIN", str(chosen))
    (tmp_path / "project").mkdir()
    project = copy_project(tmp_path / "project", "tests/configs/relevance.yaml")
    project.run("results/models/reference/manifest.json")
    called = (tmp_path / "called").read_text()
    assert Path(called.strip()).name == "prepare_model.py"

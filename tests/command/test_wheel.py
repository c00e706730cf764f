"""A wheel holds all that a run needs: the command plans the embedded study in an empty folder."""

import json
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

from tests.given.wheel import unpack_wheel

SMALL_STUDY = """
models: {reference: {source: resources/reference}}
calibrations: {facts: {task: microworld_facts, split: validation, limit: 10}}
selectors: {block: {metric: cosine, strategy: block}}
studies:
  one: {models: [reference], calibrations: [facts], selectors: [block], removed: [1], repairs: [none]}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this project puts into an environment, without its dependencies."""
    return unpack_wheel(tmp_path_factory.mktemp("wheel"))


def run_lamina(installed: Path, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "lamina_workflow.cli", *arguments]
    environment = environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_embedded_study_is_planned_by_the_installed_workflow(
    installed: Path, tmp_path: Path
) -> None:
    run_lamina(installed, tmp_path, "example", "study")

    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "rules", "--cores", "1"]
    command += ["--snakefile", str(installed / "lamina_workflow/project/workflow/Snakefile")]
    environment = environ | {"PYTHONPATH": str(installed)}
    planned = subprocess.run(
        command, cwd=tmp_path / "study", env=environment, capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    jobs = dict(line.split() for line in planned.stdout.splitlines() if len(line.split()) == 2)
    assert jobs["search_plans"] == "3"  # one for each task of the study
    assert int(jobs["total"]) > 100


def test_the_installed_workflow_runs_up_to_a_plan(installed: Path, tmp_path: Path) -> None:
    """From the model to the layers that go; a whole study takes over a minute."""
    run_lamina(installed, tmp_path, "example", "study")
    (tmp_path / "study/config.yaml").write_text(SMALL_STUDY)

    plan = Path("results/plans/reference/facts/block/removed=1.json")
    command = [sys.executable, "-P", "-m", "snakemake", "--cores", "2"]
    command += ["--snakefile", str(installed / "lamina_workflow/project/workflow/Snakefile")]
    command += ["--configfile", "config.yaml", "--", str(plan)]
    environment = environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, cwd=tmp_path / "study", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (removed_layer,) = json.loads((tmp_path / "study" / plan).read_text())["units"]
    assert 0 <= int(removed_layer) < 12


def test_a_run_without_a_configuration_says_how_to_begin(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "lamina_workflow.cli", "run"]
    environment = environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no file config/config.yaml. Name a configuration" in done.stderr


def test_a_folder_with_files_is_not_written_over(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    command = [sys.executable, "-P", "-m", "lamina_workflow.cli", "example", "."]
    environment = environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "lamina: . is not empty. Name a new folder: lamina example FOLDER\n"

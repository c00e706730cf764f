"""Another workflow, in a folder of its own, uses lamina as a module, as snakedeploy sets it up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.store import parquet
from tests import ROOT
from tests.given.wheel import unpack_wheel

pytestmark = pytest.mark.slow

SNAKEFILE = """
configfile: "config/config.yaml"

module lamina:
    snakefile:
        {source}
    config:
        config

use rule * from lamina
"""
CONFIG = """
models:
  mine: {{source: {root}/resources/reference, dtype: float32}}
calibrations:
  own: {{choices: questions.jsonl}}
selectors:
  accuracy: {{metric: accuracy, strategy: one_shot}}
repairs:
  ghost: {{method: ghost}}
benchmarks:
  tasks:
    test: {{choices: test.jsonl}}
studies:
  prune:
    models: [mine]
    calibrations: [own]
    selectors: [accuracy]
    removed: [1]
    repairs: [none, ghost]
"""
VERSION_TAG = "v0.1.0"
REPOSITORY = "lab/lamina"


def run_module(
    folder: Path, source: str, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a workflow in an empty folder that has a module of this source."""
    shutil.copytree(ROOT / "profiles", folder / "profiles")
    (folder / "config").mkdir()
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(SNAKEFILE.format(source=source))
    (folder / "config/config.yaml").write_text(CONFIG.format(root=ROOT))
    questions = (ROOT / "resources/reference/data/facts_validation.jsonl").read_text().splitlines()
    (folder / "questions.jsonl").write_text("\n".join(questions[:60]))
    (folder / "test.jsonl").write_text("\n".join(questions[-60:]))

    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", "--quiet", "--", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_benchmarks_of_both_repairs(folder: Path) -> None:
    benchmarks = parquet.read_table(folder / "results/tables/benchmarks.parquet")
    assert {"none", "ghost"} <= set(benchmarks["repair"].to_pylist())


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository REPOSITORY, which holds rules and scripts and has a tag."""
    repositories = tmp_path_factory.mktemp("repositories")
    repository = repositories / REPOSITORY
    for name in ("rules", "workflow", "envs"):
        shutil.copytree(ROOT / name, repository / name)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init"], ["add", "--all"], [*identity, "commit", "-m", "all"]):
        subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)
    subprocess.run(["git", "tag", VERSION_TAG], cwd=repository, check=True)
    return repositories


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_workflow_in_another_folder_uses_a_clone_as_a_module(tmp_path: Path) -> None:
    source = f'"{ROOT}/workflow/Snakefile"'

    run = run_module(tmp_path, source, {"PYTHONPATH": str(ROOT / "src")}, "all")

    assert run.returncode == 0, run.stderr[-3000:]
    assert "own" in (tmp_path / "results/report.html").read_text()
    assert_benchmarks_of_both_repairs(tmp_path)


def test_a_module_is_fetched_from_github_as_snakedeploy_writes_it(
    repositories: Path, packages: Path, tmp_path: Path
) -> None:
    source = f'github("{REPOSITORY}", path="workflow/Snakefile", tag="{VERSION_TAG}")'
    # Git takes the repository from here.
    environment = {
        "PYTHONPATH": str(packages),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{repositories}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }

    run = run_module(tmp_path, source, environment, "results/tables/benchmarks.parquet")

    assert run.returncode == 0, run.stderr[-3000:]
    assert_benchmarks_of_both_repairs(tmp_path)


def test_a_module_is_read_from_a_local_repository(
    repositories: Path, packages: Path, tmp_path: Path
) -> None:
    source = f'"git+file://{repositories / REPOSITORY}/workflow/Snakefile@{VERSION_TAG}"'
    environment = {"PYTHONPATH": str(packages)}

    run = run_module(
        tmp_path, source, environment, "results/plans/mine/own/accuracy/removed=1.json"
    )

    assert run.returncode == 0, run.stderr[-3000:]
    assert (tmp_path / "results/plans/mine/own/accuracy/removed=1.json").is_file()

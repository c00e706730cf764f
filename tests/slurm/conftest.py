"""A cluster that lives as long as the tests, and runs on it that several tests look at."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.project import Project
from tests.slurm.cluster import SCRIPT, Clone, make_clone

RELEVANCE = "tests/configs/relevance.yaml"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start no cluster unless asked to: it needs root and changes the machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if not config.getoption("--cluster"):
                item.add_marker(pytest.mark.skip(reason="`make test-cluster` runs these tests"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One node, two GPUs, partitions cpu and gpu."""
    subprocess.run([SCRIPT, "start"], check=True)
    yield
    subprocess.run([SCRIPT, "stop"], check=True)


@pytest.fixture(scope="session")
def prepared_clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A project with model and calibration prepared, so that tests begin with the sweep."""
    clone = make_clone(tmp_path_factory.mktemp("prepared"), RELEVANCE)
    project = Project(clone.folder, clone.folder / RELEVANCE)
    project.run("results/calibrations/reference/recall.parquet")
    return clone


@pytest.fixture(scope="session")
def undisturbed_results(prepared_clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the smallest run, measured in one job on this machine without a cluster."""
    folder = tmp_path_factory.mktemp("undisturbed") / "clone"
    shutil.copytree(prepared_clone.folder, folder, symlinks=True)
    config = folder / RELEVANCE
    config.write_text(config.read_text().replace("blocks: 2", "blocks: 1"))
    Project(folder, config).run("relevance")
    return folder / "results"


@pytest.fixture
def copy_clone(
    cluster: None, prepared_clone: Clone, tmp_path: Path
) -> Iterator[Callable[[], Clone]]:
    """Make a copy of the prepared project."""
    clone = Clone(tmp_path / "clone", prepared_clone.config)

    def copy() -> Clone:
        shutil.copytree(prepared_clone.folder, clone.folder, symlinks=True)
        return clone

    yield copy
    # A test that failed half way must not keep the GPUs from the next.
    (clone.folder / "faults/hold").unlink(missing_ok=True)
    drivers = f"profile slurm.*{clone.folder}|{clone.folder}/(workflow/)?Snakefile"
    subprocess.run(["pkill", "-KILL", "-f", drivers], check=False)
    unfinished = [job.id for job in clone.list_jobs() if job.state in ("RUNNING", "PENDING")]
    if unfinished:
        subprocess.run(["scancel", *unfinished], check=False)

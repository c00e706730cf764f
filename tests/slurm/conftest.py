"""A cluster that lives as long as the tests, and runs on it that several tests look at."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.project import Project
from tests.slurm.cluster import SCRIPT, Clone, clone

RELEVANCE = "tests/configs/relevance.yaml"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unless they are asked for there is no cluster: it needs root and leaves nothing as it was."""
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
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A project with model and calibration prepared, so that tests of faults come to the point."""
    made = clone(tmp_path_factory.mktemp("prepared"), RELEVANCE)
    Project(made.folder, made.folder / RELEVANCE).run(
        "results/calibrations/reference/recall.parquet"
    )
    return made


@pytest.fixture(scope="session")
def undisturbed(prepared: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the smallest run, measured in one job on this machine without a cluster."""
    folder = tmp_path_factory.mktemp("undisturbed") / "clone"
    shutil.copytree(prepared.folder, folder, symlinks=True)
    config = folder / RELEVANCE
    config.write_text(config.read_text().replace("blocks: 2", "blocks: 1"))
    Project(folder, config).run("relevance")
    return folder / "results"


@pytest.fixture
def fresh(cluster: None, prepared: Clone, tmp_path: Path) -> Iterator[Callable[[], Clone]]:
    """Make a copy of the prepared project."""
    folder = tmp_path / "clone"

    def copy() -> Clone:
        shutil.copytree(prepared.folder, folder, symlinks=True)
        return Clone(folder, prepared.config)

    yield copy
    # A test that failed half way must not keep the GPUs from the next.
    (folder / "faults/hold").unlink(missing_ok=True)
    subprocess.run(
        ["pkill", "-KILL", "-f", f"profile slurm.*{folder}|{folder}/Snakefile"], check=False
    )
    left = [
        job.id
        for job in Clone(folder, prepared.config).jobs()
        if job.state in ("RUNNING", "PENDING")
    ]
    if left:
        subprocess.run(["scancel", *left], check=False)

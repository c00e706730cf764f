"""Jobs that are forks of a parent measure what jobs measure that import the libraries themselves."""

import pytest

from lamina.runtime import commands
from lamina.store import parquet as store
from tests.pipeline.project import Project, copy_project

TIMED = {"efficiency", "jobs"}
pytestmark = [
    pytest.mark.reruns,
    pytest.mark.skipif(not commands.can_be_warm(), reason="forks of a parent are for Linux without a GPU"),
]


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny study, every job of which started an interpreter."""
    project = copy_project(tmp_path_factory.mktemp("cold"), "tests/configs/tiny.yaml")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAMINA_WARM", "0")
        project.run()
    return project


@pytest.mark.parametrize("name", sorted(store.TABLES.keys() - TIMED))
def test_tables_are_equal(finished: Project, cold: Project, name: str) -> None:
    forked, started = (store.read(project.folder / f"results/tables/{name}.parquet") for project in (finished, cold))
    assert forked.equals(started)


def test_the_table_of_jobs_says_what_both_used(finished: Project, cold: Project) -> None:
    """With the parents' rows, a fraction of the CPU time."""
    measured = "SELECT sum(cpu_seconds) FROM jobs WHERE rule <> 'benchmark_efficiency'"
    (forked,), (started,) = (project.query(measured)[0] for project in (finished, cold))
    assert 0 < forked < started / 2
    parents = "SELECT count(*) FROM jobs WHERE rule = 'warm_parent'"
    assert finished.query(parents)[0][0] >= 2 and cold.query(parents)[0][0] == 0
    memory = "SELECT min(max_rss_mb) FROM jobs WHERE rule = 'fit_patch'"
    assert finished.query(memory)[0][0] > 200

"""A small study on a cluster measures what it measures without one."""

import json
import re

import pytest

from lamina.store import parquet
from tests.pipeline.project import Project
from tests.slurm.cluster import GPU_STAGES, Clone, make_clone
from tests.slurm.tables import differences

STUDY = "tests/configs/cluster.yaml"


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The study, run on this machine as far as its tables."""
    clone = make_clone(tmp_path_factory.mktemp("local"), STUDY)
    project = Project(clone.folder, clone.folder / STUDY)
    project.run("results/tables/jobs.parquet")  # which is made after all other tables
    return clone


@pytest.fixture(scope="module")
def cluster_run(
    cluster: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Clone:
    """The study, run to its end on the cluster, which waits more than it computes.

    Meanwhile it is run on this machine.
    """
    clone = make_clone(tmp_path_factory.mktemp("cluster"), STUDY)
    driver = clone.start_driver()
    request.getfixturevalue("local_run")
    assert clone.wait(driver) == 0, clone.read_logs()[-8000:]
    return clone


def test_the_report_is_built(cluster_run: Clone) -> None:
    assert "<svg" in (cluster_run.folder / "results/report.html").read_text()


def test_every_job_of_a_gpu_stage_ran_on_a_gpu_that_slurm_gave_it(cluster_run: Clone) -> None:
    logs = cluster_run.folder / "logs"
    logs_by_stage = {stage: list((logs / stage).rglob("*.log")) for stage in GPU_STAGES}
    submitted_ids = sorted(
        job.id
        for job in cluster_run.list_jobs()
        if job.partition == "gpu" and job.state == "COMPLETED"
    )

    logged_ids = []
    for stage, stage_logs in logs_by_stage.items():
        assert stage_logs, stage
        for log in stage_logs:
            device = re.search(r"CUDA_VISIBLE_DEVICES=(\S*) SLURM_JOB_ID=(\S*)", log.read_text())
            assert device, f"{log} does not say where its job ran"
            assert device[1] in {"0", "1"}
            logged_ids.append(device[2])

    assert sorted(logged_ids) == submitted_ids


@pytest.mark.parametrize("table", sorted(set(parquet.TABLES) - {"jobs"}))
def test_a_table_equals_that_of_the_local_run(
    cluster_run: Clone, local_run: Clone, table: str
) -> None:
    file = f"results/tables/{table}.parquet"

    assert differences(cluster_run.folder / file, local_run.folder / file) == []


def test_jobs_ask_for_the_memory_of_their_model(cluster_run: Clone) -> None:
    manifest_file = cluster_run.folder / "results/models/reference/manifest.json"
    manifest = json.loads(manifest_file.read_text())

    weights_mb = manifest["parameters"] * 4 / 1e6
    memory = f"{round(3000 + 2 * weights_mb)}M"
    assert {job.memory for job in cluster_run.list_jobs()} == {memory}

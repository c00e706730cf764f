"""A small study goes through all stages on a cluster and measures what it measures without one."""

import json
import re
from pathlib import Path

import pytest

from lamina.store import parquet
from tests.pipeline.project import Project
from tests.slurm.cluster import GPU_STAGES, Clone, clone
from tests.slurm.tables import differences

STUDY = "tests/configs/cluster.yaml"


@pytest.fixture(scope="module")
def ran(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    made = clone(tmp_path_factory.mktemp("cluster"), STUDY)
    assert made.run() == 0, made.log()[-8000:]
    return made


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = clone(tmp_path_factory.mktemp("local"), STUDY)
    Project(made.folder, made.folder / STUDY).run()
    return made.folder


def test_the_report_is_built(ran: Clone) -> None:
    assert "<svg" in (ran.folder / "results/report.html").read_text()


def test_every_job_of_a_gpu_stage_ran_on_a_gpu_that_slurm_gave_it(ran: Clone) -> None:
    submitted = {
        job.id for job in ran.jobs() if job.partition == "gpu" and job.state == "COMPLETED"
    }
    logs = [log for stage in GPU_STAGES for log in (ran.folder / "logs" / stage).rglob("*.log")]
    assert {log.relative_to(ran.folder / "logs").parts[0] for log in logs} == set(GPU_STAGES)
    seen = set()
    for log in logs:
        place = re.search(r"CUDA_VISIBLE_DEVICES=(\S*) SLURM_JOB_ID=(\S*)", log.read_text())
        assert place, f"{log} does not say where its job ran"
        assert place[1] in {"0", "1"}
        assert place[2] in submitted
        seen.add(place[2])
    assert seen == submitted and len(seen) == len(logs)


@pytest.mark.parametrize("table", sorted(set(parquet.TABLES) - {"jobs"}))
def test_the_table_equals_that_of_the_local_run(ran: Clone, local: Path, table: str) -> None:
    path = f"results/tables/{table}.parquet"
    assert differences(ran.folder / path, local / path) == []


def test_jobs_asked_for_memory_and_time_after_the_manifest(ran: Clone) -> None:
    manifest = json.loads((ran.folder / "results/models/reference/manifest.json").read_text())
    weights_mb = manifest["parameters"] * 4 / 1e6
    assert {job.memory for job in ran.jobs()} == {f"{round(3000 + 2 * weights_mb)}M"}

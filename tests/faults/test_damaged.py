"""A damaged result is named with the remedy, which leads to the tables of an undisturbed run; a log is only skipped."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import study
from tests.faults.study import KEY, cut, empty, flip, foreign
from tests.pipeline.project import Project, parse_jobs

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Damage:
    """What happens to which file, and a file that is made from it and shall be made again."""

    damage: Callable[[Path], None]
    file: str
    reader: str


SWEEP = f"results/sweeps/{KEY}/removed=1.parquet"
ADAPTER = f"results/adapters/{KEY}/removed=2/none/lora"
# Those of a round do not meet: no reader reads two of them.
ROUNDS = {
    "patch, check, sweep, table": [
        Damage(
            flip,
            f"results/patches/{KEY}/ghost.safetensors",
            "results/benchmarks/reference/own/test/block=0.parquet",
        ),
        Damage(
            cut,
            "results/overlap/reference/own/asked.json",
            "results/tables/shared_documents.parquet",
        ),
        Damage(empty, SWEEP, f"results/relevance/{KEY}/removed=1.parquet"),
        Damage(flip, "results/tables/calibrations.parquet", "results/tables/dissociations.parquet"),
    ],
    "plan, calibration": [
        Damage(flip, f"results/plans/{KEY}/removed=2.json", "results/tables/plans.parquet"),
        Damage(
            foreign,
            "results/calibrations/reference/own.parquet",
            "results/activations/reference/own.parquet",
        ),
    ],
    "adapter, task": [
        Damage(
            flip,
            f"{ADAPTER}/adapter_model.safetensors",
            "results/benchmarks/reference/own/asked/block=0.parquet",
        ),
        Damage(cut, "results/tasks/test.parquet", "results/overlap/reference/own/test.json"),
    ],
}


@pytest.mark.parametrize("name", ROUNDS)
def test_what_is_damaged_is_named_and_remade(
    name: str, finished: Callable[[], Project], undisturbed: Project
) -> None:
    project = finished()
    for each in ROUNDS[name]:
        path = project.folder / each.file
        before = path.stat().st_mtime_ns
        each.damage(path)
        os.utime(path, ns=(before, before))  # as a disk does it
        (project.folder / each.reader).unlink()
    done = project.run(*(each.reader for each in ROUNDS[name]), check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    for each in ROUNDS[name]:
        (said,) = {
            line
            for line in done.stdout.splitlines()
            if line.startswith(f"lamina: {each.file} is damaged")
        }
        assert "Delete it and run again" in said
        assert not (project.folder / each.reader).exists()
        (project.folder / each.file).unlink()
    project.run(*study.TABLES)
    study.equal(project, undisturbed)


@pytest.mark.parametrize("damage", [flip, empty])
def test_a_damaged_manifest_is_named_first(
    damage: Callable[[Path], None], finished: Callable[[], Project]
) -> None:
    project = finished()
    file = "results/models/reference/manifest.json"
    damage(project.folder / file)
    done = project.run("-n", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"lamina: {file} is damaged")
    (project.folder / file).unlink()
    (project.folder / SWEEP).unlink()
    assert {"prepare_model", "sweep_units"} <= {
        job.rule for job in parse_jobs(project.run("-n", SWEEP).stdout)
    }


def test_logs_and_leftovers_are_no_hindrance(
    finished: Callable[[], Project], undisturbed: Project
) -> None:
    project = finished()
    results = project.folder / "results"
    for path in (results / "jobs").rglob("*.jsonl"):
        cut(path)
    (project.folder / ADAPTER / ".progress.safetensors").write_bytes(b"\x08" * 40)
    (project.folder / ADAPTER / "training.parquet").unlink()  # so that it is trained again
    shutil.rmtree(results / "tables")
    (results / "studies/notes/deeper").mkdir(parents=True)
    (results / "studies/notes/plans.parquet").write_text("no table")
    (results / ".lamina.duckdb.1.tmp.wal").touch()
    project.run(*study.TABLES, "results/tables/jobs.parquet", "results/lamina.duckdb")
    study.equal(project, undisturbed)
    assert (results / "lamina.duckdb").stat().st_size > 0

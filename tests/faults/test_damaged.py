"""A damaged result is named with the remedy, which leads to the tables of an undisturbed run.

A damaged log is only skipped.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import study
from tests.faults.study import KEY, clear, flip_bit, replace_by_json, truncate
from tests.pipeline.project import Project, parse_jobs, rules_of

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Damage:
    """What is done to a file, and a file that is made of it and has to be made again."""

    damage: Callable[[Path], None]
    file: str
    dependent: str


SWEEP = f"results/sweeps/{KEY}/removed=1.parquet"
ADAPTER = f"results/adapters/{KEY}/removed=2/none/lora"
CALIBRATION = "results/calibrations/reference/own.parquet"
# Damages that one run meets together: no job reads two of the files.
DAMAGES = {
    "patch, overlap, sweep, table": [
        Damage(
            flip_bit,
            f"results/patches/{KEY}/ghost.safetensors",
            "results/benchmarks/reference/own/test/block=0.parquet",
        ),
        Damage(
            truncate,
            "results/overlap/reference/own/asked.json",
            "results/tables/shared_documents.parquet",
        ),
        Damage(clear, SWEEP, f"results/relevance/{KEY}/removed=1.parquet"),
        Damage(
            truncate,  # the middle of so small a table holds statistics, which no reader needs
            "results/tables/calibrations.parquet",
            "results/tables/dissociations.parquet",
        ),
    ],
    "plan, calibration": [
        Damage(flip_bit, f"results/plans/{KEY}/removed=2.json", "results/tables/plans.parquet"),
        Damage(replace_by_json, CALIBRATION, "results/activations/reference/own.parquet"),
    ],
    "adapter, task": [
        Damage(
            flip_bit,
            f"{ADAPTER}/adapter_model.safetensors",
            "results/benchmarks/reference/own/asked/block=0.parquet",
        ),
        Damage(truncate, "results/tasks/test.parquet", "results/overlap/reference/own/test.json"),
    ],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_named_and_remade(
    name: str, finished: Project, undisturbed: Project
) -> None:
    damages = DAMAGES[name]
    for damage in damages:
        path = finished.folder / damage.file
        time_before = path.stat().st_mtime_ns
        damage.damage(path)
        study.set_time(path, time_before)  # a failing disk changes no time
        (finished.folder / damage.dependent).unlink()

    run = finished.run(*(damage.dependent for damage in damages), check=False)

    assert run.returncode != 0
    assert "Traceback" not in run.stdout
    for damage in damages:
        beginning = f"lamina: {damage.file} is damaged"
        (message,) = {line for line in run.stdout.splitlines() if line.startswith(beginning)}
        assert "Delete it and run again" in message
        assert not (finished.folder / damage.dependent).exists()

    for damage in damages:
        (finished.folder / damage.file).unlink()
    finished.run(*study.TABLES)
    study.assert_equal_tables(finished, undisturbed)


@pytest.mark.parametrize("damage", [flip_bit, clear])
def test_a_damaged_manifest_is_named_first(
    damage: Callable[[Path], None], finished: Project
) -> None:
    manifest = "results/models/reference/manifest.json"
    damage(finished.folder / manifest)

    run = finished.run("-n", check=False)
    assert run.returncode != 0
    assert "Traceback" not in run.stdout
    assert run.stdout.splitlines()[-1].startswith(f"lamina: {manifest} is damaged")

    (finished.folder / manifest).unlink()
    (finished.folder / SWEEP).unlink()
    planned_jobs = parse_jobs(finished.run("-n", SWEEP).stdout)
    assert {"prepare_model", "sweep_units"} <= rules_of(planned_jobs)


def test_damaged_logs_and_leftovers_hinder_nothing(finished: Project, undisturbed: Project) -> None:
    results = finished.folder / "results"
    for log in (results / "jobs").rglob("*.jsonl"):
        truncate(log)
    (finished.folder / ADAPTER / ".progress.safetensors").write_bytes(b"\x08" * 40)
    (finished.folder / ADAPTER / "training.parquet").unlink()  # so that it is trained again
    shutil.rmtree(results / "tables")
    (results / "studies/notes/deeper").mkdir(parents=True)
    (results / "studies/notes/plans.parquet").write_text("no table")
    (results / ".lamina.duckdb.1.tmp.wal").touch()

    finished.run(*study.TABLES, "results/tables/jobs.parquet", "results/lamina.duckdb")

    study.assert_equal_tables(finished, undisturbed)
    assert (results / "lamina.duckdb").stat().st_size > 0

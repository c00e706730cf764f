"""What jobs ask of a machine: devices and threads. Memory and time are asked of a job (test_job.py)."""

import json
from pathlib import Path

from lamina_workflow.runtime import resources


def manifest(folder: Path) -> Path:
    path = folder / "manifest.json"
    path.write_text(
        json.dumps(
            {"dtype": "bfloat16", "parameters": 8_000_000_000, "weights_bytes": 16_000_000_000}
        )
    )
    return path


def test_a_job_asks_for_the_devices_that_hold_the_weights(tmp_path: Path) -> None:
    path = manifest(tmp_path)  # 16 GB
    assert [resources.gpus_of_job("auto", path, size, None) for size in (80, 24, 16, 8)] == [
        1,
        1,
        2,
        3,
    ]
    assert [resources.gpus_of_job(4, path, 80, here) for here in (None, 8, 2, 0)] == [4, 4, 2, 1]


def test_two_jobs_share_the_cores_of_a_machine_and_a_cluster_has_its_own() -> None:
    assert [resources.threads_of_job(cores) for cores in (1, 2, 16)] == [1, 1, 8]
    assert resources.threads_of_job(16, alone=True) == 16
    assert resources.threads_of_job(None) == resources.threads_of_job(None, alone=True) == 4

"""What jobs ask of a machine: devices and threads (for memory and time, see test_job.py)."""

import json
from pathlib import Path

import pytest

from lamina_workflow.runtime import resources


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Of a model with 16 GB of weights."""
    path = tmp_path / "manifest.json"
    facts = {
        "dtype": "bfloat16",
        "parameters": 8_000_000_000,
        "weights_bytes": 16_000_000_000,
    }
    path.write_text(json.dumps(facts))
    return path


@pytest.mark.parametrize(("device_gb", "n_devices"), [(80, 1), (24, 1), (16, 2), (8, 3)])
def test_a_job_asks_for_the_devices_that_hold_the_weights(
    manifest: Path, device_gb: int, n_devices: int
) -> None:
    assert resources.gpus_of_job("auto", manifest, device_gb, None) == n_devices


@pytest.mark.parametrize(("n_visible", "n_devices"), [(None, 4), (8, 4), (2, 2), (0, 1)])
def test_a_job_asks_for_at_most_the_devices_of_the_machine(
    manifest: Path, n_visible: int | None, n_devices: int
) -> None:
    assert resources.gpus_of_job(4, manifest, 80, n_visible) == n_devices


def test_two_jobs_share_the_cores_of_a_machine() -> None:
    assert resources.threads_of_job(1) == 1
    assert resources.threads_of_job(2) == 1
    assert resources.threads_of_job(16) == 8
    assert resources.threads_of_job(16, alone=True) == 16


def test_a_job_of_a_cluster_has_four_cores() -> None:
    assert resources.threads_of_job(None) == 4
    assert resources.threads_of_job(None, alone=True) == 4

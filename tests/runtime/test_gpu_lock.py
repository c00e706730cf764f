"""Two jobs of one machine never share a GPU; where a scheduler assigns GPUs, nothing is locked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lamina_workflow.runtime import devices as gpu_lock

SOURCE = str(Path(gpu_lock.__file__).parents[2])
LOCK_COMMAND = [sys.executable, "-m", "lamina_workflow.runtime.devices"]
# Writes on which devices it was, and from when to when.
JOB = """
import os, time
start = time.monotonic()
time.sleep(0.5)
print(os.environ["CUDA_VISIBLE_DEVICES"], start, time.monotonic())
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a driver; its jobs put their locks into the folder that is returned."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that it is restored after the test
        monkeypatch.delenv(name)
    return tmp_path


def start_job(devices: str, n_devices: int = 1) -> subprocess.Popen[str]:
    """A job that needs so many of the devices."""
    return subprocess.Popen(
        [*LOCK_COMMAND, str(n_devices), sys.executable, "-c", JOB],
        env=os.environ | {"PYTHONPATH": SOURCE, "CUDA_VISIBLE_DEVICES": devices},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def times_by_devices(jobs: list[subprocess.Popen[str]]) -> dict[str, list[tuple[float, float]]]:
    """When each device, or set of devices, was held."""
    times: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        output, _ = job.communicate(timeout=60)
        job_devices, start, end = output.split()
        times.setdefault(job_devices, []).append((float(start), float(end)))
    return times


def assert_one_after_the_other(times: list[tuple[float, float]]) -> None:
    times = sorted(times)
    for (_, end), (next_start, _) in zip(times, times[1:], strict=False):
        assert end <= next_start


def devices_of_this_job(n_devices: int, **environment: str) -> str | None:
    """The devices that a job in this process sees."""
    os.environ.update(environment)
    with gpu_lock.acquire_devices(n_devices):
        return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(("devices", "n_jobs"), [("3,5", 5), ("0", 3), ("0,1,2,3", 4)])
def test_jobs_at_the_same_time_never_share_a_device(
    machine: Path, devices: str, n_jobs: int
) -> None:
    jobs = [start_job(devices) for _ in range(n_jobs)]

    times = times_by_devices(jobs)

    all_devices = devices.split(",")
    assert set(times) <= set(all_devices)
    assert len(times) > 1 or len(all_devices) == 1
    for times_of_device in times.values():
        assert_one_after_the_other(times_of_device)


def test_jobs_that_need_two_devices_never_wait_for_each_other(machine: Path) -> None:
    jobs = [start_job("0,1", n_devices=2) for _ in range(3)]

    times = times_by_devices(jobs)

    assert set(times) == {"0,1"}
    assert len(times["0,1"]) == 3
    assert_one_after_the_other(times["0,1"])


def test_a_killed_job_frees_its_device(machine: Path) -> None:
    killed_job = start_job("0")
    assert killed_job.stderr is not None
    assert "CUDA_VISIBLE_DEVICES=0" in killed_job.stderr.readline()
    killed_job.kill()

    start = time.monotonic()
    assert start_job("0").wait(timeout=20) == 0
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("n_devices", "devices", "slurm_job"),
    [(1, "1", "7"), (2, "2,3", "7"), (0, "2,3", "7"), (1, "", "")],
    ids=["one of one", "two of two", "a job without a GPU", "no GPU"],
)
def test_what_a_scheduler_assigned_is_not_locked(
    machine: Path, n_devices: int, devices: str, slurm_job: str
) -> None:
    seen_devices = devices_of_this_job(
        n_devices, CUDA_VISIBLE_DEVICES=devices, SLURM_JOB_ID=slurm_job
    )
    assert seen_devices == devices
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["HF_DATASETS_OFFLINE"] == "1"
    assert list(machine.iterdir()) == []


def test_without_a_gpu_a_job_simply_starts(machine: Path) -> None:
    assert devices_of_this_job(1) is None
    assert list(machine.iterdir()) == []


def test_jobs_share_an_allocation_of_several_devices(machine: Path) -> None:
    assert devices_of_this_job(1, CUDA_VISIBLE_DEVICES="2,3", SLURM_JOB_ID="7") == "2"
    assert (machine / f"lamina-gpus-{os.getuid()}-7").is_dir()


NVIDIA_SMI = """#!/bin/sh
/bin/cat <<'END'
GPU 0: NVIDIA A100 (UUID: GPU-aa)
GPU 1: NVIDIA A100 (UUID: GPU-bb)
  MIG 1g.10gb     Device  0: (UUID: MIG-b1)
  MIG 1g.10gb     Device  1: (UUID: MIG-b2)
GPU 2: NVIDIA A100 (UUID: GPU-cc)
END
"""


def test_the_driver_lists_devices_and_the_parts_of_divided_ones(machine: Path) -> None:
    tool = machine / "nvidia-smi"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    assert gpu_lock.list_devices({}) == ["GPU-aa", "MIG-b1", "MIG-b2", "GPU-cc"]


@pytest.mark.parametrize(
    ("devices", "count"),
    [("0,1,2", "3"), ("", "0"), ("-1", "0"), ("NoDevFiles", "0"), ("0,-1,1", "1")],
)
def test_make_run_counts_the_visible_devices(machine: Path, devices: str, count: str) -> None:
    environment = {"PYTHONPATH": SOURCE, "CUDA_VISIBLE_DEVICES": devices}
    output = subprocess.check_output([*LOCK_COMMAND, "--count"], env=environment, text=True)
    assert output.strip() == count


def test_locks_can_be_read_by_their_user_alone(machine: Path) -> None:
    mask_before = os.umask(0)
    try:
        assert devices_of_this_job(1, CUDA_VISIBLE_DEVICES="0") == "0"
    finally:
        os.umask(mask_before)
    folder = machine / f"lamina-gpus-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "0.lock").stat().st_mode & 0o777 == 0o600

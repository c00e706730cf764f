"""Two jobs of one machine never share a GPU, and where somebody else gives GPUs away nothing is locked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lamina_workflow.runtime import devices as gpu_lock

# Writes when it was on which device, and how many it saw.
JOB = """
import os, time
device, start = os.environ["CUDA_VISIBLE_DEVICES"], time.monotonic()
time.sleep(0.5)
print(device, start, time.monotonic())
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a driver whose jobs lock in a folder of the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    return tmp_path


def start(count: int = 1, **environment: str) -> subprocess.Popen[str]:
    source = str(Path(gpu_lock.__file__).parents[2])
    command = [
        sys.executable,
        "-m",
        "lamina_workflow.runtime.devices",
        str(count),
        sys.executable,
        "-c",
        JOB,
    ]
    everything = os.environ | {"PYTHONPATH": source} | environment
    return subprocess.Popen(
        command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def seen(count: int, **environment: str) -> str | None:
    """The devices that a job of this process sees."""
    os.environ.update(environment)
    with gpu_lock.acquire_devices(count):
        return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(("devices", "jobs"), [("3,5", 5), ("0", 3), ("0,1,2,3", 4)])
def test_jobs_at_a_time_never_share_a_device(place: Path, devices: str, jobs: int) -> None:
    outputs = [
        job.communicate()[0].split()
        for job in [start(CUDA_VISIBLE_DEVICES=devices) for _ in range(jobs)]
    ]
    assert {device for device, _, _ in outputs} <= set(devices.split(","))
    times: dict[str, list[tuple[float, float]]] = {}
    for device, begin, end in outputs:
        times.setdefault(device, []).append((float(begin), float(end)))
    for spans in times.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert len(times) > 1 or "," not in devices


def test_a_killed_job_gives_its_device_back(place: Path) -> None:
    held = start(CUDA_VISIBLE_DEVICES="0")
    assert held.stderr is not None
    assert "CUDA_VISIBLE_DEVICES=0" in held.stderr.readline()
    held.kill()
    began = time.monotonic()
    assert start(CUDA_VISIBLE_DEVICES="0").wait(timeout=20) == 0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("count", "devices", "job"), [(1, "1", "7"), (2, "2,3", "7"), (0, "2,3", "7"), (1, "", "")]
)
def test_what_a_scheduler_gave_or_nothing_is_kept_unlocked(
    place: Path, count: int, devices: str, job: str
) -> None:
    assert seen(count, CUDA_VISIBLE_DEVICES=devices, SLURM_JOB_ID=job) == devices
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["HF_DATASETS_OFFLINE"] == "1"
    assert list(place.iterdir()) == []


def test_without_a_gpu_a_job_simply_starts(place: Path) -> None:
    assert seen(1) is None and list(place.iterdir()) == []


def test_an_allocation_of_several_devices_is_shared_out(place: Path) -> None:
    assert seen(1, CUDA_VISIBLE_DEVICES="2,3", SLURM_JOB_ID="7") == "2"
    assert (place / f"lamina-gpus-{os.getuid()}-7").is_dir()


def test_jobs_that_need_two_devices_never_wait_for_each_other(place: Path) -> None:
    outputs = [
        job.communicate(timeout=60)[0].split()
        for job in [start(2, CUDA_VISIBLE_DEVICES="0,1") for _ in "abc"]
    ]
    assert [seen for seen, _, _ in outputs] == 3 * ["0,1"]
    times = sorted((float(begin), float(end)) for _, begin, end in outputs)
    assert all(before[1] <= after[0] for before, after in zip(times, times[1:], strict=False))


def test_the_driver_lists_devices_and_the_parts_of_divided_ones(place: Path) -> None:
    parts = [
        f"  MIG 1g.10gb     Device  {number}: (UUID: MIG-b{number + 1})" for number in range(2)
    ]
    first, divided, last = (
        f"GPU {n}: NVIDIA A100 (UUID: GPU-{name})" for n, name in enumerate(("aa", "bb", "cc"))
    )
    listing, tool = "\n".join([first, divided, *parts, last]), place / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{listing}\nEND\n")
    tool.chmod(0o755)
    assert gpu_lock.list_devices({}) == ["GPU-aa", "MIG-b1", "MIG-b2", "GPU-cc"]


def test_make_run_counts_the_visible_devices(place: Path) -> None:
    command = [sys.executable, "-m", "lamina_workflow.runtime.devices", "--count"]
    source = str(Path(gpu_lock.__file__).parents[2])
    for visible, count in (("0,1,2", "3"), ("", "0")):
        environment = {"PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": visible}
        assert subprocess.check_output(command, env=environment, text=True).strip() == count


def test_a_folder_of_locks_is_this_users_alone(place: Path) -> None:
    folder = place / f"lamina-gpus-{os.getuid()}"
    mask = os.umask(0)
    try:
        assert seen(1, CUDA_VISIBLE_DEVICES="0") == "0"
    finally:
        os.umask(mask)
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "0.lock")] == [
        "0o700",
        "0o600",
    ]

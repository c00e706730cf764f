"""Run a command on a GPU that no other job of this machine has: `python -m lamina.workflow.gpu_lock COMMAND …`.

Snakemake counts the GPUs of a machine but assigns none, so that two jobs at a time would both use the first. Here each
device has a lock file; the command starts once it holds one, sees only that device, and gives it back when it ends,
however it ends. Where a scheduler gave the job its one device, or where there is no GPU, the command simply starts.
"""

import fcntl
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_WAIT_S = 0.5


def installed() -> list[str]:
    """Identifiers of this machine's NVIDIA devices in the driver's order; of a divided GPU those of its parts."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    found: list[list[str]] = []
    for line in listing.splitlines():
        if identifier := re.search(r"\(UUID: ([^)]+)\)", line):
            if line.startswith("GPU"):
                found.append([identifier[1]])
            else:
                found[-1].append(identifier[1])
    return [device for whole, *parts in found for device in parts or [whole]]


def devices(environment: Mapping[str, str]) -> list[str]:
    """Devices that jobs here may use, as CUDA_VISIBLE_DEVICES names them.

    The variable restricts them if it is set; its numbers become identifiers, so that two runs which name the same
    device in different ways do not both take it.
    """
    every = installed()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return every
    named = [name.strip() for name in visible.split(",") if name.strip()]
    return [every[int(name)] if name.isdigit() and int(name) < len(every) else name for name in named]


def take(candidates: Sequence[str], folder: Path) -> str:
    """Wait until one of `candidates` is free and hold it until this process and the programs it becomes have ended."""
    folder.mkdir(exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o1777)
    files = {device: _open(folder / f"{device.replace('/', '_')}.lock") for device in candidates}
    while True:
        for device, file in files.items():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.set_inheritable(file, True)
            for other in files.values():
                if other != file:
                    os.close(other)
            return device
        time.sleep(_WAIT_S)


def _open(path: Path) -> int:
    try:
        # Another user's lock file in a shared folder may be opened, but not with the permission to create it.
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)
        return file


def assign(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with the one device that the command shall see; returns when that device is free."""
    assigned = dict(environment)
    candidates = devices(environment)
    job = environment.get("SLURM_JOB_ID")
    if not candidates or (job and len(candidates) == 1):
        return assigned
    # Inside an allocation of several GPUs, numbers may stand for other devices than in the allocation beside it.
    folder = Path(tempfile.gettempdir()) / (f"lamina-gpus-{job}" if job else "lamina-gpus")
    assigned["CUDA_VISIBLE_DEVICES"] = take(candidates, folder)
    return assigned


def describe(environment: Mapping[str, str]) -> str:
    """Where a command runs, for its log."""
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_PARTITION")
    return " ".join([f"host={socket.gethostname()}", *(f"{name}={environment.get(name, '')}" for name in names)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(devices(os.environ)))
    else:
        environment = assign(os.environ)
        print(describe(environment), file=sys.stderr, flush=True)
        os.execvpe(sys.argv[1], sys.argv[1:], environment)

"""Run a command on GPUs that no other job has: `python -m lamina.runtime.devices COUNT COMMAND …`.

Snakemake counts the GPUs of a machine but assigns none, so that two jobs at a time would both use the first. Here each
device has a lock file, in a folder that only this user can write to. The command starts once it holds COUNT locks, sees
only those devices, and gives them back when it ends, however it ends. If a scheduler gave the job its devices, or if
there is no GPU, the command simply starts. A COUNT of 0 takes what the scheduler gave, or one device.
"""

import contextlib
import fcntl
import os
import random
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lamina.errors import LaminaError, explained

_WAIT_S = 0.5
UNKNOWN_GB = 80.0  # of a device on a cluster whose login node has none


def installed() -> list[str]:
    """Identifiers of this machine's NVIDIA devices in the driver's order; of a divided GPU those of its parts."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    gpus: list[list[str]] = []
    for line in listing.splitlines():
        if identifier := re.search(r"\(UUID: ([^)]+)\)", line):
            if line.startswith("GPU") or not gpus:
                gpus.append([])
            gpus[-1].append(identifier[1])
    return [device for listed in gpus for device in listed[1:] or listed]


def memory_gb(environment: Mapping[str, str]) -> float:
    """Gigabytes of one device: LAMINA_DEVICE_GB, else the memory of the smallest device here, else 80."""
    if given := environment.get("LAMINA_DEVICE_GB"):
        return float(given)
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        listing = []
    sizes = [int(size) * (1 << 20) / 1e9 for size in listing if size.isdigit()]
    return min(sizes) if sizes else UNKNOWN_GB


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


def take(candidates: Sequence[str], folder: Path, count: int = 1) -> list[str]:
    """Wait until `count` of `candidates` are free, and hold them until this process ends, also after an `exec`.

    It takes all at once or none, so that two jobs never wait for each other. A waiting job says so on standard error,
    with the processes that it waits for.

    Raises
    ------
    LaminaError
        If `folder` is not this user's own, or a lock in it is no plain file.
    """
    place = _own_folder(folder)
    files = {device: _open(place, f"{device.replace('/', '_')}.lock", folder) for device in candidates}
    os.close(place)
    reported: list[str] = []
    while True:
        held: list[str] = []
        for device, file in files.items():
            if len(held) < count and _locked(file):
                held.append(device)
        if len(held) == count:
            for device, file in files.items():
                if device in held:
                    os.ftruncate(file, 0)
                    os.pwrite(file, str(os.getpid()).encode(), 0)
                    os.set_inheritable(file, True)
                else:
                    os.close(file)
            return held
        for device in held:
            fcntl.flock(files[device], fcntl.LOCK_UN)
        if (holders := [_holder(device, files[device]) for device in files if device not in held]) != reported:
            reported = holders
            print(f"waiting for {count} of {len(files)} devices: {'; '.join(reported)}", file=sys.stderr, flush=True)
        time.sleep(_WAIT_S * random.uniform(0.5, 1.5))


def _own_folder(folder: Path) -> int:
    """Open a folder that only this user can write to; make it if it is missing."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise LaminaError(f"{folder} is no folder, and locks of devices stand in it. Delete it.") from None
    status = os.fstat(place)
    if status.st_uid != os.getuid():
        raise LaminaError(
            f"{folder}, where this user's locks of devices stand, belongs to another (uid {status.st_uid}). Have it "
            "deleted, or set TMPDIR to a folder of your own."
        )
    os.fchmod(place, 0o700)
    return place


def _open(place: int, name: str, folder: Path) -> int:
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=place)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
    except OSError:
        pass
    raise LaminaError(f"{folder}/{name} is no plain file, and no lock of a device. Delete it.")


def _holder(device: str, file: int) -> str:
    """The process that holds a device, as its lock names it."""
    pid = os.pread(file, 20, 0).decode(errors="replace")
    try:
        words = Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
        script = next((Path(word.decode()).name for word in words if word.endswith(b".py")), words[0].decode())
        return f"{device} is held by process {pid} ({script})"
    except (ValueError, OSError):
        return f"{device} is held by a process that is about to start or end"


def _locked(file: int) -> bool:
    """Lock an open file; False if another process holds its lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def assign(environment: Mapping[str, str], count: int = 1) -> dict[str, str]:
    """`environment` with the `count` devices that the command shall see; returns once they are free."""
    assigned = dict(environment)
    candidates = devices(environment)
    job = environment.get("SLURM_JOB_ID")
    if not candidates or (job and (count == 0 or len(candidates) <= count)):
        return assigned
    # Inside an allocation of several GPUs, numbers may stand for other devices than in the allocation beside it.
    folder = Path(tempfile.gettempdir()) / f"lamina-gpus-{os.getuid()}{f'-{job}' if job else ''}"
    assigned["CUDA_VISIBLE_DEVICES"] = ",".join(take(candidates, folder, min(max(1, count), len(candidates))))
    return assigned


def describe(environment: Mapping[str, str]) -> str:
    """Where a command runs, for its log."""
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_PARTITION")
    return " ".join([f"host={socket.gethostname()}", *(f"{name}={environment.get(name, '')}" for name in names)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(devices(os.environ)))
    else:
        with explained():
            environment = assign(os.environ, int(sys.argv[1]))
        print(describe(environment), file=sys.stderr, flush=True)
        os.execvpe(sys.argv[2], sys.argv[2:], environment)

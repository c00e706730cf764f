"""Reserve GPUs for a job: `with acquire_devices(count):` before torch is imported.

Snakemake counts GPUs but does not assign them, so each device has a lock file.
`python -m lamina_workflow.runtime.devices COUNT COMMAND` runs a command with its own devices;
`--count` prints how many there are.
"""

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lamina.errors import LaminaError, report_errors

UNKNOWN_GB = 80.0  # for a device on a cluster whose login node has none
# Seconds between two attempts. They are random so that jobs do not try at the same time.
_WAIT_SECONDS = (0.25, 0.75)


def _ask_driver(*options: str) -> list[str]:
    """The lines that nvidia-smi prints; none on a machine without it."""
    with suppress(FileNotFoundError):
        process = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True)
        return process.stdout.splitlines()
    return []


def memory_gb(environment: Mapping[str, str]) -> float:
    """Gigabytes of one device: LAMINA_DEVICE_GB, else those of the smallest device here, else 80."""
    stated = environment.get("LAMINA_DEVICE_GB")
    if stated:
        return float(stated)
    lines = _ask_driver("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    sizes_gb = [int(line) * (1 << 20) / 1e9 for line in lines if line.isdigit()]
    return min(sizes_gb, default=UNKNOWN_GB)


def list_devices(environment: Mapping[str, str]) -> list[str]:
    """Identifiers of the devices that jobs may use: CUDA_VISIBLE_DEVICES, else all here.

    A number is replaced by the identifier (UUID) of the local device, if there is one.
    """
    installed = _installed_devices()
    visible = environment.get("CUDA_VISIBLE_DEVICES", ",".join(installed))
    identifiers = []
    for name in re.findall(r"[^,\s]+", visible):
        if name.startswith("-") or name == "NoDevFiles":
            break  # CUDA also ignores this and what follows
        is_index = name.isdigit() and int(name) < len(installed)
        identifiers.append(installed[int(name)] if is_index else name)
    return identifiers


def _installed_devices() -> list[str]:
    """Identifiers of all devices here; for a divided GPU (MIG), those of its parts."""
    listing = "\n".join(_ask_driver("-L"))
    found = re.findall(r"^( *).*\(UUID: ([^)]+)\)", listing, re.MULTILINE)
    identifiers = []
    for index, (indent, identifier) in enumerate(found):
        is_last = index + 1 == len(found)
        # The lines of a GPU's parts follow the line of the GPU and are indented.
        is_divided = not indent and not is_last and bool(found[index + 1][0])
        if not is_divided:
            identifiers.append(identifier)
    return identifiers


@contextmanager
def acquire_devices(count: int) -> Iterator[None]:
    """Wait for `count` devices and show this process only those, until the block or it ends.

    The process is also kept off the network. Nothing is locked without a GPU, or if a scheduler has
    assigned the devices. A `count` of 0 takes what the scheduler assigned, or one device.

    Raises LaminaError if the folder of locks belongs to another user.
    """
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    visible = list_devices(os.environ)
    slurm_job = os.environ.get("SLURM_JOB_ID")
    is_assigned = slurm_job and (count == 0 or len(visible) <= count)
    with ExitStack() as held_locks:
        if visible and not is_assigned:
            locks = _device_locks(visible, slurm_job)
            n_devices = min(max(1, count), len(visible))
            taken = _take(locks, n_devices, held_locks)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
        print(
            f"host={socket.gethostname()}"
            f" CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
            f" SLURM_JOB_ID={slurm_job or ''}",
            file=sys.stderr,
            flush=True,
        )
        yield


def _device_locks(identifiers: list[str], slurm_job: str | None) -> dict[str, FileLock]:
    """The lock of each device.

    In an allocation of several GPUs, numbers may mean other devices than in another allocation on
    the same machine, so each allocation has its own folder.
    """
    suffix = f"-{slurm_job}" if slurm_job else ""
    folder = Path(tempfile.gettempdir()) / f"lamina-gpus-{os.getuid()}{suffix}"
    _make_private_folder(folder)
    locks = {}
    for identifier in identifiers:
        file = folder / f"{identifier.replace('/', '_')}.lock"
        locks[identifier] = FileLock(file, mode=0o600)
    return locks


def _make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can write to, or check that it is one."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    owner = folder.lstat().st_uid
    if folder.is_symlink() or not folder.is_dir() or owner != os.getuid():
        raise LaminaError(
            f"{folder}, for device locks, is not a folder of yours (uid {owner} owns it). Have it "
            "deleted, or set TMPDIR to a folder of your own."
        )
    folder.chmod(0o700)


def _take(locks: Mapping[str, FileLock], count: int, held_locks: ExitStack) -> list[str]:
    """Take `count` devices at once or none, so that two jobs never wait for each other."""
    last_message = ""
    while True:
        taken = _try_to_take(locks, count, held_locks)
        if len(taken) == count:
            return taken
        used = [
            f"{identifier} (process {Path(lock.lock_file).read_text()})"
            for identifier, lock in locks.items()
            if identifier not in taken
        ]
        message = f"waiting for {count} of {len(locks)} devices; in use: {', '.join(used)}"
        if message != last_message:
            print(message, file=sys.stderr, flush=True)
            last_message = message
        time.sleep(random.uniform(*_WAIT_SECONDS))


def _try_to_take(locks: Mapping[str, FileLock], count: int, held_locks: ExitStack) -> list[str]:
    """The free devices, at most `count`. They stay locked only if there are `count` of them."""
    taken: list[str] = []
    with ExitStack() as attempt:
        for identifier, lock in locks.items():
            with suppress(Timeout):
                attempt.enter_context(lock.acquire(blocking=False))
                Path(lock.lock_file).write_text(str(os.getpid()))
                taken.append(identifier)
            if len(taken) == count:
                held_locks.push(attempt.pop_all())
                break
    return taken


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(list_devices(os.environ)))
        sys.exit()
    with report_errors(), acquire_devices(int(sys.argv[1])):
        sys.exit(subprocess.call(sys.argv[2:]))

"""GPUs that no other job has: `with acquire(count):` around what a job does, before torch is imported.

Snakemake counts GPUs but assigns none, so each device has a lock file. `python -m lamina.runtime.devices COUNT COMMAND`
runs a command with devices of its own; `--count` prints how many there are.
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

from lamina.errors import LaminaError, explained

UNKNOWN_GB = 80.0  # of a device on a cluster whose login node has none


def _driver(*question: str) -> list[str]:
    with suppress(FileNotFoundError):
        return subprocess.run(
            ["nvidia-smi", *question], capture_output=True, text=True
        ).stdout.splitlines()
    return []


def memory_gb(environment: Mapping[str, str]) -> float:
    """Gigabytes of one device: LAMINA_DEVICE_GB, else the memory of the smallest device here, else 80."""
    sizes = _driver("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    smallest = min(
        (int(size) * (1 << 20) / 1e9 for size in sizes if size.isdigit()), default=UNKNOWN_GB
    )
    return float(environment.get("LAMINA_DEVICE_GB") or smallest)


def devices(environment: Mapping[str, str]) -> list[str]:
    """Identifiers of the devices that jobs may use: CUDA_VISIBLE_DEVICES, else all here; of a divided GPU its parts."""
    found = re.findall(r"^( *).*\(UUID: ([^)]+)\)", "\n".join(_driver("-L")), re.MULTILINE)
    # A GPU is divided if the line of a part comes next, which is indented.
    every = [
        name
        for (part, name), (below, _) in zip(found, [*found[1:], ("", "")], strict=False)
        if part or not below
    ]
    named = re.findall(r"[^,\s]+", environment.get("CUDA_VISIBLE_DEVICES", ",".join(every)))
    return [
        every[int(name)] if name.isdigit() and int(name) < len(every) else name for name in named
    ]


@contextmanager
def acquire(count: int = 1) -> Iterator[None]:
    """Wait for `count` devices and let this process see only those, offline, until the block or the process ends.

    Nothing is locked without a GPU, or where a scheduler has given the devices; a `count` of 0 takes what it gave, or
    one. A LaminaError if the folder of locks is none of this user's.
    """
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    free, job = devices(os.environ), os.environ.get("SLURM_JOB_ID")
    with ExitStack() as held:
        if free and not (job and (count == 0 or len(free) <= count)):
            # In an allocation of several GPUs, numbers may stand for other devices than in the allocation beside it.
            folder = _own(
                Path(tempfile.gettempdir()) / f"lamina-gpus-{os.getuid()}{f'-{job}' if job else ''}"
            )
            locks = {
                name: FileLock(folder / f"{name.replace('/', '_')}.lock", mode=0o600)
                for name in free
            }
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
                _take(locks, min(max(1, count), len(free)), held)
            )
        shown = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')} SLURM_JOB_ID={job or ''}"
        print(f"host={socket.gethostname()} {shown}", file=sys.stderr, flush=True)
        yield


def _own(folder: Path) -> Path:
    """A folder that only this user can write to, made if it is missing."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    owner = folder.lstat().st_uid
    if folder.is_symlink() or not folder.is_dir() or owner != os.getuid():
        said = f"{folder}, for locks of devices, is no folder of yours (uid {owner} owns it)."
        raise LaminaError(f"{said} Have it deleted, or set TMPDIR to a folder of your own.")
    folder.chmod(0o700)
    return folder


def _take(locks: Mapping[str, FileLock], count: int, held: ExitStack) -> list[str]:
    """Take `count` devices at once or none, so that two jobs never wait for each other."""
    reported = ""
    while True:
        with ExitStack() as tried:
            taken: list[str] = []
            for name in locks:
                with suppress(Timeout):
                    tried.enter_context(locks[name].acquire(blocking=False))
                    Path(locks[name].lock_file).write_text(str(os.getpid()))
                    taken.append(name)
                if len(taken) == count:
                    held.push(tried.pop_all())
                    return taken
        used = [
            f"{name} (process {Path(locks[name].lock_file).read_text()})"
            for name in locks
            if name not in taken
        ]
        if (
            news := f"waiting for {count} of {len(locks)} devices; in use: {', '.join(used)}"
        ) != reported:
            print(reported := news, file=sys.stderr, flush=True)
        time.sleep(random.uniform(0.25, 0.75))


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(devices(os.environ)))
        sys.exit()
    with explained(), acquire(int(sys.argv[1])):
        sys.exit(subprocess.call(sys.argv[2:]))

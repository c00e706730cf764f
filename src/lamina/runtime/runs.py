"""The runs that work in a folder: each has a folder of its own under `.snakemake/lamina-runs`, so that no run uses the
socket or record of another. `python -m lamina.runtime.runs` fails if a run still lives, and says how to end it.
"""

import os
import shutil
import socket
import sys
from pathlib import Path

from lamina.errors import LaminaError, explained

FOLDER = Path(".snakemake/lamina-runs")


def own() -> Path:
    """The folder of the run that this process drives; nobody else can enter it."""
    return FOLDER / f"{socket.gethostname()[:40]}-{os.getpid()}"


def begin() -> None:
    """Put this run on record, and delete the records of runs that have ended."""
    for folder in FOLDER.glob("*"):
        if _living(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
    own().mkdir(mode=0o700, parents=True, exist_ok=True)
    own().chmod(0o700)
    (own() / "driver").write_text(f"{socket.gethostname()} {os.getpid()} {_since(os.getpid())}\n")


def end() -> None:
    """Take this run off the record."""
    shutil.rmtree(own(), ignore_errors=True)


def check(root: Path, elsewhere: bool = False) -> None:
    """Refuse to go on if a run in `root` may still be at work.

    `elsewhere` says that runs that were started on other machines have certainly ended.

    Raises
    ------
    LaminaError
        If a run may be at work. The message names it and says how to end it.
    """
    for folder in sorted((root / FOLDER).glob("*")):
        reason = _living(folder)
        if reason and not (elsewhere and "started on" in reason):
            raise LaminaError(f"a run in this folder has not ended: {reason}.")


def explain_locks() -> None:
    """Let Snakemake say who holds the lock of a locked folder, and what to write."""
    from snakemake import exceptions

    class Locked(exceptions.LockException):
        def __init__(self) -> None:
            exceptions.WorkflowError.__init__(self, f"lamina: {locked(Path.cwd())}")

    exceptions.LockException = Locked


def locked(root: Path) -> str:
    """Why a folder may be locked, and what to do about it."""
    try:
        check(root)
    except LaminaError as error:
        return f"{error} Or wait until it has ended."
    return (
        f"{root} is locked by a run that has ended without a word, as one does that is killed. Write `make unlock` "
        "(after a run on a cluster `make resume-slurm`), then start again: what is finished stays."
    )


def _living(folder: Path) -> str | None:
    """Why a run may still be at work; None if it has certainly ended."""
    try:
        host, pid, since = (folder / "driver").read_text().split()
    except (OSError, ValueError):
        return None  # it was killed as it began
    if host != socket.gethostname():
        return f"it was started on {host}: go on there, or add FORCE=1 once it has certainly ended"
    return f"it is at work as process {pid}: stop it with `kill -INT {pid}`" if _since(int(pid)) == since else None


def _since(pid: int) -> str | None:
    """When a process began, by the machine's clock ticks; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        if Path("/proc/self").exists():
            return None
    try:  # on systems without /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


if __name__ == "__main__":
    with explained():
        check(Path.cwd(), "--force" in sys.argv[1:])

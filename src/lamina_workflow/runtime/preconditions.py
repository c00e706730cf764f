"""What a run needs before it begins: a valid folder, room on its disks, and no other run in it."""

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lamina.errors import LaminaError
from lamina_workflow.config import text

# Packages that jobs import. A file with such a name in the run's folder would be imported instead.
_IMPORTED_PACKAGES = {
    "datasets",
    "duckdb",
    "lamina",
    "lm_eval",
    "numpy",
    "peft",
    "pyarrow",
    "snakemake",
    "torch",
    "transformers",
}
_WRITTEN_FOLDERS = ("results", "logs", ".snakemake")  # in the folder of a run
_LEAST_FREE_BYTES = 4 << 20  # with less free space on a disk, jobs may fail anywhere


@contextmanager
def end_with_message(files: Sequence[str | Path]) -> Iterator[None]:
    """End Snakemake with only the message of a `LaminaError`, without a traceback.

    The message begins with the line of the configuration `files` that causes it, if it is known.
    """
    try:
        yield
    except LaminaError as error:
        location = text.locate_key(files, str(error))
        if not location and files and " is missing. " in str(error):
            location = str(files[-1])
        sys.exit(f"lamina: {location}: {error}" if location else f"lamina: {error}")


def check_folder(folder: Path) -> None:
    """Refuse a working folder that Snakemake or Python would misread.

    Raises LaminaError, whose message says what to rename, if the path has braces, or a file in the
    folder has the name of a module.
    """
    if "{" in str(folder) or "}" in str(folder):
        raise LaminaError(
            f"{folder}: Snakemake reads braces in a path as wildcards. Rename the folder."
        )
    module_names = {file.stem for file in folder.glob("*.py")}
    hiding_names = module_names & (sys.stdlib_module_names | _IMPORTED_PACKAGES)
    if hiding_names:
        raise LaminaError(
            f"{folder / min(hiding_names)}.py has the name of a module that jobs import, and some "
            "would import this file instead. Rename it, or move it into a folder."
        )


def check_writable(folder: Path) -> None:
    """Refuse to run if results, logs or Snakemake's own files cannot be written in `folder`.

    Raises LaminaError, whose message names the folder. If one does not exist, its nearest existing
    parent must be writable.
    """
    for name in _WRITTEN_FOLDERS:
        written = folder / name
        if written.is_symlink() and not written.exists():
            raise LaminaError(
                f"{written} is a link to {written.readlink()}, which does not exist. Make that "
                "folder, or delete the link."
            )
        existing = next(path for path in (written, *written.parents) if path.exists())
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            raise LaminaError(
                f"{existing} cannot be written to ({error.strerror}), and {name} is kept there. "
                "Make it writable, or start in a folder on another disk."
            ) from error


def check_room(folder: Path) -> None:
    """End the program if a disk that a run in `folder` writes to is full."""
    with end_with_message([]):
        message = describe_full_disk(folder)
        if message:
            raise LaminaError(message)


def describe_full_disk(folder: Path) -> str | None:
    """A message if a disk that a run in `folder` writes to is full; else None."""
    written = [folder, *(folder / name for name in _WRITTEN_FOLDERS), Path(tempfile.gettempdir())]
    for path in written:
        if path.is_dir() and shutil.disk_usage(path).free < _LEAST_FREE_BYTES:
            return (
                f"{path} is on a disk that is full: No space left on device. Free some space and "
                "start again."
            )
    return None


def hold_results(folder: Path) -> None:
    """Lock a results folder for the run of this process, until the process ends.

    The lock belongs to the file system, so it also excludes another clone, container or node. On a
    file system without locks, nothing is locked. The program ends if another run holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    with end_with_message([]):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise LaminaError(
                f"{folder} is being written by another run, of this folder or of another clone, in "
                "a container or on another node. Wait until it has ended."
            ) from None
        except (NotImplementedError, OSError):
            return
    # A lock object without a reference would be released at once.
    atexit.register(lock.release)

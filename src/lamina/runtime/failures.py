"""Refusals before a run, and its first failure as its last lines: with `--keep-going` it stands far above them."""

import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lamina.config import text
from lamina.errors import LaminaError, cause

_FAILED = re.compile(r"^Error in rule (\w+):\n((?:    .*\n)*)", re.MULTILINE)
_ENDED = r"{rule}\.py' (?:returned non-zero exit status (\d+)|died with <Signals\.(\w+))"
_KILLED = "The system sends it where memory runs out, a scheduler at its limits, and a person by `kill -9`."
_IMPORTED = set(
    "datasets duckdb lamina lm_eval numpy peft pyarrow snakemake torch transformers".split()
)
_ROOM = 4 << 20  # bytes; with less, jobs may fail anywhere
_LOCKS: list[FileLock] = []  # a lock that nothing refers to is released
_LONGEST = 20  # lines of a message; a longer text is a log


@contextmanager
def refused(files: Sequence[str | Path]) -> Iterator[None]:
    """End Snakemake with only the message of a `LaminaError` and its line of the configuration, without a traceback."""
    try:
        yield
    except LaminaError as error:
        at = text.locate_key(files, str(error)) or (
            str(files[-1]) if " is missing. " in str(error) and files else ""
        )
        sys.exit(f"lamina: {at}: {error}" if at else f"lamina: {error}")


def check_folder(folder: Path) -> None:
    """Refuse a folder to work in that Snakemake or Python would misread: braces in its path, names of modules in it.

    Raises LaminaError, which says what to rename.
    """
    if "{" in str(folder) or "}" in str(folder):
        raise LaminaError(
            f"{folder}: Snakemake takes braces in a path for wildcards. Rename the folder."
        )
    own = {file.stem for file in folder.glob("*.py")} & (sys.stdlib_module_names | _IMPORTED)
    if own:
        raise LaminaError(
            f"{folder / min(own)}.py has the name of a module that jobs import, and some would import this file "
            "instead. Rename it, or move it into a folder."
        )


def check_writable(folder: Path) -> None:
    """Refuse to run where files cannot be written: under `folder`, in its folders of results, logs and Snakemake's own.

    Raises LaminaError, which names the folder. One that does not exist is looked for further up.
    """
    for written in (folder / "results", folder / "logs", folder / ".snakemake"):
        if written.is_symlink() and not written.exists():
            raise LaminaError(
                f"{written} is a link to {written.readlink()}, which is not there. Make that folder, or delete the "
                "link."
            )
        existing = next(each for each in (written, *written.parents) if each.exists())
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            raise LaminaError(
                f"{existing} cannot be written to ({error.strerror}), and {written.name} is kept there. Make it "
                "writable, or start in a folder on another disk."
            ) from error


def check_room(folder: Path) -> None:
    """End the program if a disk is full on which a run under `folder` writes."""
    written = [folder / name for name in ("results", "logs", ".snakemake")]
    existing = [each for each in written if each.is_dir()]
    with refused([]):
        if message := full(folder, *existing, tempfile.gettempdir()):
            raise LaminaError(message)


def hold(folder: Path) -> FileLock:
    """Hold a results folder for the run of this process, until it ends or the lock is released.

    The lock is the file system's: it holds for another clone, container or node too. Where the file system has none,
    nothing is held. The program ends if another run holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    with refused([]):
        try:
            lock.acquire(blocking=False)
            _LOCKS.append(lock)
        except Timeout:
            raise LaminaError(
                f"{folder} is being written by another run: of another clone, in a container or on another node. Wait "
                "until it has ended."
            ) from None
        except (NotImplementedError, OSError):
            pass
    return lock


def first_failure(run_log: str | Path) -> str | None:
    """From Snakemake's log: the rule that failed first, the message of its job and where to read on.

    None if no job failed for good. The message begins with `lamina:` in the job's log, or is the end of a traceback; of
    a job that wrote none it is how its process ended.
    """
    log_text = Path(run_log).read_text(encoding="utf-8", errors="replace")
    if "Terminating processes on user request" in log_text:
        return "\nStopped. The same command goes on."
    for failed in _FAILED.finditer(log_text):
        facts = dict(re.findall(r"^    (\w+): (.*)$", failed[2], re.MULTILINE))
        if re.search(
            rf"^Finished jobid: {facts.get('jobid')}\b", log_text[failed.end() :], re.MULTILINE
        ):
            continue
        named = facts.get("log", "").removesuffix(" (check log file(s) for error details)")
        logs = [Path(name) for name in named.split(", ")]
        reason = next((message for message in map(_message, logs) if message), "")
        # Snakemake writes how the process ended before it writes the error.
        ended = list(re.finditer(_ENDED.format(rule=failed[1]), log_text[: failed.start()]))
        why = _ending(ended[-1] if ended else None, bool(reason))
        why = "\n".join(filter(None, [reason, why]))
        for meaning in (cause(reason), full()):
            why += f"\nlamina: {meaning}" if meaning and meaning not in why else ""
        return (
            f"\nThe first failure, in rule {failed[1]}:\n{why}\nMore in {', '.join(map(str, logs))}"
        )
    return None


def _ending(ended: re.Match[str] | None, explained: bool) -> str:
    """How a process ended, if a signal ended it or nothing else is known."""
    status = int(ended[1] or 0) if ended else 0
    name = ended[2] if ended else None
    if status > 128 and status - 128 in set(signal.Signals):
        name = signal.Signals(status - 128).name
    if name:
        return f"Signal {name} ended the job. {_KILLED if name == 'SIGKILL' else ''}".rstrip()
    if explained:
        return ""
    return f"The job wrote nothing and ended with {f'exit status {status}' if status else 'an unknown status'}."


def _message(log: Path) -> str | None:
    if not log.is_file():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith("lamina: ")]
    if ours:
        return "\n".join(lines[ours[-1] :][:_LONGEST])
    # The first line of a job says where it runs, so it is not a reason.
    return next(
        (line for line in reversed(lines) if line.strip() and not line.startswith("host=")), None
    )


def full(*folders: str | Path) -> str | None:
    """The message that a disk is full where a run writes: jobs cannot even write it then. None if no disk is full."""
    for folder in folders or ("results", "logs", ".snakemake", tempfile.gettempdir()):
        if Path(folder).is_dir() and shutil.disk_usage(folder).free < _ROOM:
            return f"{folder} is on a disk that is full: No space left on device. Make room and start again."
    return None


def tell(run_log: str | Path) -> None:
    """Write the first failure to standard error."""
    print(first_failure(run_log) or "", file=sys.stderr)

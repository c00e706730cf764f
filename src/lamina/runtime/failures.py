"""Refusals before a run, and its first failure as its last lines: with `--keep-going` it stands far above them."""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lamina.config import text
from lamina.errors import LaminaError, cause

_FAILED = re.compile(r"^Error in rule (\w+):\n((?:    .*\n)*)", re.MULTILINE)
_ROOM = 4 << 20  # bytes; with less, jobs may fail anywhere
_LONGEST = 20  # lines of a message; a longer text is a log


@contextmanager
def refused(files: Sequence[str | Path]) -> Iterator[None]:
    """End Snakemake with only the message of a `LaminaError` and its line of the configuration, without a traceback."""
    try:
        yield
    except LaminaError as error:
        at = text.place(files, str(error))
        sys.exit(f"lamina: {at}: {error}" if at else f"lamina: {error}")


def first_failure(run_log: str | Path) -> str | None:
    """From Snakemake's log: the rule that failed first, the message of its job and where to read on.

    None if no job failed for good. The message begins with `lamina:` in the job's log, or is the end of a traceback.
    """
    log_text = Path(run_log).read_text(encoding="utf-8", errors="replace")
    for failed in _FAILED.finditer(log_text):
        facts = dict(re.findall(r"^    (\w+): (.*)$", failed[2], re.MULTILINE))
        if re.search(rf"^Finished jobid: {facts.get('jobid')}\b", log_text[failed.end() :], re.MULTILINE):
            continue
        named = facts.get("log", "").removesuffix(" (check log file(s) for error details)")
        logs = [Path(name) for name in named.split(", ")]
        reason = next((message for message in map(_message, logs) if message), None)
        why = reason or "its job ended without a word, as one does that is killed or runs out of memory."
        for meaning in (cause(why), full()):
            why += f"\nlamina: {meaning}" if meaning and meaning not in why else ""
        return f"\nThe first failure, in rule {failed[1]}:\n{why}\nMore in {', '.join(map(str, logs))}"
    return None


def _message(log: Path) -> str | None:
    if not log.is_file():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith("lamina: ")]
    if ours:
        return "\n".join(lines[ours[-1] :][:_LONGEST])
    # The first line of a job says where it runs, so it is not a reason.
    return next((line for line in reversed(lines) if line.strip() and not line.startswith("host=")), None)


def full(*folders: str | Path) -> str | None:
    """The message that a disk is full where a run writes: jobs cannot even write it then. None if no disk is full."""
    for folder in folders or ("results", "logs", ".snakemake", tempfile.gettempdir()):
        if Path(folder).is_dir() and shutil.disk_usage(folder).free < _ROOM:
            return f"{folder} is on a disk that is full: No space left on device. Make room and start again."
    return None


def tell(run_log: str | Path) -> None:
    """Write the first failure to standard error."""
    print(first_failure(run_log) or "", file=sys.stderr)

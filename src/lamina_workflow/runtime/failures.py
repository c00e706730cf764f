"""Repeat a run's first failure in its last lines: with `--keep-going` it is far above them."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lamina.errors import explain_machine_error
from lamina_workflow.runtime.preconditions import describe_full_disk

# Snakemake's messages of a job that failed, and of how its process ended.
_FAILED = re.compile(r"^Error in rule (\w+):\n((?:    .*\n)*)", re.MULTILINE)
_ENDED = r"{rule}\.py' (?:returned non-zero exit status (\d+)|died with <Signals\.(\w+))"
_WHY_KILLED = (
    "The system sends it when memory runs out, a scheduler at its limits, and a person with "
    "`kill -9`."
)
_MAX_MESSAGE_LINES = 20  # a longer text is a log
_PROGRESS_BAR = re.compile(r"\d+%\|.*\d+/\d+ \[")


FOLDER = "LAMINA_FOLDER"
"""Environment variable: the run's folder, as a path from where the command was given."""


def print_first_failure(run_log: str | Path) -> None:
    """Write the first failure of a run to standard error."""
    print(first_failure(run_log) or "", file=sys.stderr)


def first_failure(run_log: str | Path) -> str | None:
    """The first rule that failed, its job's message and where to read on, from Snakemake's log.

    None if no job failed in the end. The message is the one that begins with `lamina:` in the job's
    log, or the end of a traceback. If the job wrote none, it is how its process ended.
    """
    log_text = Path(run_log).read_text(encoding="utf-8", errors="replace")
    if "Terminating processes on user request" in log_text:
        return "\nStopped. Run the same command to continue."
    for failed in _FAILED.finditer(log_text):
        facts = dict(re.findall(r"^    (\w+): (.*)$", failed[2], re.MULTILINE))
        # A failed job may have been tried again.
        finished = rf"^Finished jobid: {facts.get('jobid')}\b"
        if not re.search(finished, log_text[failed.end() :], re.MULTILINE):
            # Snakemake logs how the process ended before it logs the error.
            return _describe(failed[1], _logs(facts), log_text[: failed.start()])
    return None


def _logs(facts: dict[str, str]) -> list[Path]:
    names = facts.get("log", "").removesuffix(" (check log file(s) for error details)")
    return [Path(name) for name in names.split(", ")]


def _describe(rule: str, logs: Sequence[Path], log_before: str) -> str:
    """The message in a failed job's logs, how the job ended, and what that means."""
    reason = _first_message(logs)
    endings = list(re.finditer(_ENDED.format(rule=rule), log_before))
    ending = _describe_ending(endings[-1] if endings else None, has_reason=bool(reason))
    text = "\n".join(filter(None, [reason, ending]))
    for meaning in (explain_machine_error(reason), describe_full_disk(Path.cwd())):
        if meaning and meaning not in text:
            text += f"\nlamina: {meaning}"
    folder = Path(os.environ.get(FOLDER, ""))
    names = ", ".join(str(folder / log) for log in logs)
    return f"\nThe first failure, in rule {rule}:\n{text}\nMore in {names}"


def _describe_ending(ended: re.Match[str] | None, has_reason: bool) -> str:
    """How a process ended, if a signal ended it or nothing else is known."""
    status = int(ended[1] or 0) if ended else 0
    signal_name = ended[2] if ended else None
    # The shell returns 128 plus the number of the signal.
    if status > 128 and status - 128 in set(signal.Signals):
        signal_name = signal.Signals(status - 128).name
    if signal_name == "SIGKILL":
        return f"Signal SIGKILL ended the job. {_WHY_KILLED}"
    if signal_name:
        return f"Signal {signal_name} ended the job."
    if has_reason:
        return ""
    stated = f"exit status {status}" if status else "an unknown status"
    return f"The job wrote nothing and ended with {stated}."


def _first_message(logs: Sequence[Path]) -> str:
    """The message in the first log that has one; empty if none has."""
    for log in logs:
        message = _message(log)
        if message:
            return message
    return ""


def _message(log: Path) -> str | None:
    """The last message of lamina in a log, else its last line; None without a line.

    The line in which a job says where it runs, and progress bars, do not count.
    """
    if not log.is_file():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("lamina: ")]
    if starts:
        return "\n".join(lines[starts[-1] :][:_MAX_MESSAGE_LINES])
    for line in reversed(lines):
        if line.strip() and not line.startswith("host=") and not _PROGRESS_BAR.search(line):
            return line
    return None

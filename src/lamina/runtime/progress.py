"""How far a run is, and nothing else unless something goes wrong: Snakemake's logger plugin `lamina`.

On a terminal one line is written over and over; in a pipe there is a line a minute and one for each tenth of the run.
"""

import json
import logging
import re
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.store.timeleft import spoken

# Snakemake's own messages of a run that goes well; all other messages are shown.
_COUNTED = {LogEvent.JOB_INFO, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.RUN_INFO}
_QUIET = {
    LogEvent[name]
    for name in "JOB_STARTED WORKFLOW_STARTED RESOURCES_INFO GROUP_INFO SHELLCMD".split()
}
_TALK = re.compile(
    "Building DAG|Select jobs|Using shell: |Conda environments: ignored|host: |Config file |Singularity containers: |"
    "Group jobs: inactive|Removing temporary output|Assuming unrestricted shared filesystem"
)
# What the first failure says at the end, in the words of the job itself.
_REPEATED = re.compile(
    "(RuleException:\\n)?CalledProcessError|WorkflowError:\\nAt least one job did not complete|Exiting because a job"
)
_SECONDS = 60.0  # between two lines in a pipe, at most
_AGAIN = 5.0  # between two computations of the time left, which reads a file
_START = 2e10  # operations in the time that a job takes beside its counted arithmetic: a second of a small model

_followed: list[
    tuple[Any, Path]
] = []  # the workflow that this process runs, and the file of its cost


def follow(workflow: Any, cost: Path) -> None:
    """Let the progress know the jobs of a workflow, and the file that rule `estimate_cost` writes in this run."""
    _followed[:] = [(workflow, cost)]


@dataclass
class Progress:
    """What is known of a run, in seconds on any one clock. A job's work is its arithmetic as the file `cost` has it."""

    stages: Counter[str] = field(default_factory=Counter)  # jobs of each rule, and `total`
    outputs: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of each job that has to run
    cost: Path | None = None
    begun: float = 0.0
    done: int = 0
    stage: str = ""  # the rule of the last job that started or ended
    rules: dict[int, str] = field(default_factory=dict)  # of jobs under way
    finished: Counter[str] = field(default_factory=Counter)
    ended: set[int] = field(default_factory=set)
    _left: tuple[float, float | None] = (
        -_AGAIN,
        None,
    )  # when the line last had it, and what it was

    def start(self, job: int, rule: str) -> None:
        """Count a job that was started."""
        self.stage = self.rules[job] = rule

    def finish(self, job: int) -> None:
        """Count a job that ended well."""
        self.stage = self.rules.pop(job, self.stage)
        self.finished[self.stage] += 1
        self.ended.add(job)

    def left(self, now: float) -> float | None:
        """Seconds to the end at the pace so far; None before a job has ended."""
        flops: dict[str, float] = {}
        with suppress(OSError, ValueError, KeyError):
            flops = json.loads(self.cost.read_text(encoding="utf-8"))["jobs"] if self.cost else {}
        jobs = self.outputs or dict.fromkeys(range(self.stages["total"]), ())
        work = {
            job: _START + max([flops.get(file, 0.0) for file in files], default=0.0)
            for job, files in jobs.items()
        }
        ended = sum(work.get(job, _START) for job in self.ended)
        rest = sum(work[job] for job in work.keys() - self.ended)
        return (now - self.begun) * rest / ended if ended else None

    def line(self, now: float) -> str:
        """`120 of 400 jobs (30 %), sweep_units 34 of 80, 2 min, about 4 min left`."""
        if now - self._left[0] >= _AGAIN:
            self._left = now, self.left(now)
        total, stage, left = self.stages["total"], self.stage, self._left[1]
        text = f"{self.done} of {total} jobs ({100 * self.done / max(1, total):.0f} %)"
        text += (
            f", {stage} {self.finished[stage]} of {self.stages[stage]}, {spoken(now - self.begun)}"
            if stage
            else ""
        )
        return text if left is None or self.done >= total else f"{text}, about {spoken(left)} left"


class LogHandler(LogHandlerBase):
    """Writes progress to standard error, and every warning and error in Snakemake's own words.

    Of a failed job it says which one: `lamina.runtime.failures` ends the run with what the first one says itself.
    """

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        asked = self.common_settings
        self.stream: TextIO = sys.stdout if asked.stdout else sys.stderr
        self.progress = Progress()
        self.drawn = ""  # the line that stands on the terminal
        self.stopped = False  # by Ctrl-C
        self.last = (-1, 0.0)  # tenth of the run and time of the last line
        self._over = threading.Event()
        self.addFilter(
            DefaultFilter(
                asked.quiet, asked.debug_dag, asked.verbose, asked.dryrun, asked.printshellcmds
            )
        )
        self.setFormatter(DefaultFormatter(asked.quiet, asked.show_failed_logs))

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record, or show it."""
        try:
            event, text = record.__dict__.get("event"), str(record.msg or "")
            if text.startswith("Terminating processes"):
                self.stopped = True
                self._say("Stopping: jobs that are under way are ended.")
                return
            if not self.common_settings.verbose and (
                _REPEATED.match(text) or event == LogEvent.JOB_ERROR
            ):
                if event == LogEvent.JOB_ERROR and not self.stopped:
                    failed = record.__dict__
                    self._say(
                        f"{failed['rule_name']} failed: {', '.join(map(str, failed['output']))}"
                    )
                return
            shown = (
                record.levelno >= logging.WARNING
                or self.common_settings.dryrun
                or self.common_settings.verbose
            )
            if shown or (
                event not in _COUNTED
                and event not in _QUIET
                and text.strip()
                and not _TALK.match(text)
            ):
                self._say(self.format(record))
            elif event in _COUNTED:
                self._count(record.__dict__, record.created)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._over.set()
        self.stream.write("\n" if self.drawn else "")
        self.drawn = ""
        super().close()

    def _count(self, fields: dict[str, Any], now: float) -> None:
        event, progress = fields["event"], self.progress
        if event == LogEvent.RUN_INFO:
            progress.stages, progress.begun = Counter(fields["stats"]), now
            for workflow, progress.cost in _followed:
                jobs = workflow.dag.needrun_jobs(exclude_finished=False)
                progress.outputs = {job.jobid: tuple(map(str, job.output)) for job in jobs}
            threading.Thread(target=self._keep_saying, daemon=True).start()
        elif event == LogEvent.JOB_INFO:
            progress.start(fields["jobid"], fields["rule_name"])
            if fields.get("rule_msg"):  # the message of a rule for its job
                self._say(fields["rule_msg"])
        elif event == LogEvent.JOB_FINISHED:
            progress.finish(fields["job_id"])
        else:
            progress.done, progress.stages["total"] = fields["done"], fields["total"]
        if self.stream.isatty() or event in (LogEvent.RUN_INFO, LogEvent.PROGRESS):
            self._tell(now)

    def _keep_saying(self) -> None:
        """Write a line a minute also while no job begins or ends."""
        while not self._over.wait(_SECONDS):
            with self.lock or threading.RLock():
                if not self._over.is_set() and self.progress.rules:
                    self._tell(time.time())

    def _tell(self, now: float) -> None:
        tenth, line = (
            self.progress.done * 10 // max(1, self.progress.stages["total"]),
            self.progress.line(now),
        )
        if self.stream.isatty():
            self._draw(line)
        elif tenth > self.last[0] or now - self.last[1] >= _SECONDS:
            self.last = tenth, now
            self._say(line)

    def _draw(self, line: str, above: str = "") -> None:
        """Write a line over the one that stands on the terminal, and lines above it."""
        cleared = f"\r{' ' * len(self.drawn)}\r" if self.drawn else ""
        self.drawn = line[: shutil.get_terminal_size().columns - 1]
        self.stream.write(cleared + above + self.drawn)
        self.stream.flush()

    def _say(self, text: str) -> None:
        self._draw(self.drawn, f"{text}\n")

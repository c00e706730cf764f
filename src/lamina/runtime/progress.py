"""How far a run is: jobs done of all, the stage, the time left, and nothing else unless something goes wrong.

This is Snakemake's logger plugin `lamina` (`snakemake --logger lamina`, as `make run` does). On a terminal it writes
one line over and over; in a pipe it writes a line a minute and a line for each tenth of the run, without control codes.
For long jobs it shows the shares that are done, as their logs say.
"""

import logging
import math
import shutil
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.runtime.expected import Expected, Waiting, of_graph
from lamina.runtime.schedule import Left, lasts
from lamina.runtime.timeleft import SECONDS, said, spoken

# Snakemake's own messages of a run that goes well; all other messages are shown.
_COUNTED = {LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.RUN_INFO}
_SILENT = {*_COUNTED, LogEvent.WORKFLOW_STARTED, LogEvent.RESOURCES_INFO, LogEvent.GROUP_INFO, LogEvent.SHELLCMD}
_TALK = (
    "Building DAG of jobs",
    "Select jobs to execute",
    "Using shell: ",
    "Conda environments: ignored",
    "Singularity containers: ignored",
    "Group jobs: inactive",
    "Removing temporary output",
    "Assuming unrestricted shared filesystem",
    "Config file ",
    "host: ",
)
_SECONDS = 60.0  # between two lines in a pipe, at most
_LOOK = SECONDS / 2  # between two looks at the logs of running jobs
# Seconds between two computations of the time left. One takes a third of a second with 45,000 jobs, and on a terminal
# there is a line three times a job.
_AGAIN = 5.0
_TAIL = 4096  # bytes at the end of a log, where a job says how far it is
# A run is taken to keep this share of its threads busy, until it has shown for as many seconds how many it keeps.
_BUSY, _SHOWN = 0.9, 60.0

_drivers: list[Any] = []  # the workflow that this process runs


def follow(workflow: Any) -> None:
    """Let the progress of a workflow know its jobs: Snakemake's own messages only count them."""
    _drivers[:] = [workflow]


class Running(NamedTuple):
    """A job under way: what it is, when it began, its log."""

    job: Waiting
    begun: float
    log: Path | None = None

    def said(self, now: float) -> tuple[float, float | None] | None:
        """The share that its log says is done, and the seconds left now; None where it says nothing."""
        if self.log is None or not self.log.is_file():
            return None
        with self.log.open("rb") as file:
            stat = self.log.stat()
            file.seek(max(0, stat.st_size - _TAIL))
            last = said(file.read().decode(errors="replace"))
        if last is None or last[1] is None:
            return last
        return last[0], max(0.0, last[1] - max(0.0, now - stat.st_mtime))


@dataclass
class Progress:
    """What is known of a run. Times are seconds on any one clock."""

    stages: Counter[str] = field(default_factory=Counter)  # jobs of each rule
    total: int = 0
    done: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    timed: list[tuple[Waiting, float]] = field(default_factory=list)  # the finished jobs
    waiting: dict[int, Waiting] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)
    stage: str = ""  # the rule of the last job that started or ended
    begun: float = 0.0
    cores: int | None = None  # of this machine; None where a cluster runs the jobs
    expected: Expected = field(default_factory=Expected)
    _said: dict[int, tuple[float, float | None]] = field(default_factory=dict)  # by running jobs, at the last look
    _looked: float = -math.inf
    _left: tuple[float, bool] | None = None  # as a line last had it, and when
    _told: float = -math.inf

    def plan(
        self, stages: dict[str, int], now: float, jobs: dict[int, Waiting] | None = None, cores: int | None = None
    ) -> None:
        """Take the jobs of each rule with their `total`, and the jobs themselves by their numbers."""
        self.stages = Counter({rule: count for rule, count in stages.items() if rule != "total"})
        self.total, self.begun, self.cores, self.waiting = stages["total"], now, cores, dict(jobs or {})

    def start(self, job: int, rule: str, now: float, log: Path | None = None) -> None:
        """A job was started."""
        self.stage = rule
        self.running[job] = Running(self.waiting.pop(job, Waiting(rule)), now, log)

    def finish(self, job: int, now: float) -> None:
        """A job ended well."""
        if job in self.running:
            one, began, _ = self.running.pop(job)
            self.stage = one.rule
            self.finished[one.rule] += 1
            self.timed.append((one, now - began))

    def shares(self, now: float) -> dict[int, float]:
        """The shares that running jobs have done, by their logs.

        A cluster runs hundreds of jobs, and each writes a line a minute at most. So logs are read about as seldom, and
        logs of younger jobs are not read.
        """
        if now - self._looked >= _LOOK:
            self._looked = now
            self.expected.look()
            old = {job: one for job, one in self.running.items() if now - one.begun >= SECONDS}
            self._said = {job: last for job, one in old.items() if (last := one.said(now))}
        return {job: share for job, (share, _) in self._said.items() if job in self.running and share}

    def left(self, now: float) -> tuple[float, bool] | None:
        """Seconds to the end, and whether every job that is left was counted or its kind timed; None before any was.

        A running job takes what its log says, and one whose log says nothing what is expected of it. The threads of all
        that is left are shared by as many as the run has kept busy so far. Jobs that wait for each other are played
        through one after the other, and the run takes no less than they do.
        """
        self.shares(now)
        passed = now - self.begun
        lasting = {job: seconds for job, (_, seconds) in self._said.items() if job in self.running}
        ending = {job: seconds for job, seconds in lasting.items() if seconds is not None}
        timed = self.timed + [
            (self.running[job].job, now - self.running[job].begun + seconds) for job, seconds in ending.items()
        ]
        if not timed or passed <= 0:
            return None
        running = {job: one.job for job, one in self.running.items()}
        seconds = self.expected.corrected([*self.waiting.values(), *running.values()], timed)
        rest = {job: Left(seconds[one], one.threads, one.priority, one.after) for job, one in self.waiting.items()}
        for job, one in running.items():
            last = ending.get(job, max(0.0, seconds[one] - (now - self.running[job].begun)))
            rest[job] = Left(last, one.threads, running=True)
        spent = sum(taken * one.threads for one, taken in self.timed)
        spent += sum((now - one.begun) * one.job.threads for one in self.running.values())
        abreast = max(1.0, spent / passed)
        if self.cores:
            abreast = (spent + _BUSY * self.cores * _SHOWN) / (passed + _SHOWN)
        shared = sum(one.seconds * one.threads for one in rest.values()) / abreast
        kinds = {one.rule for one, _ in timed}
        known = self.expected.counted or {one.rule for one in [*self.waiting.values(), *running.values()]} <= kinds
        return max(shared, lasts(rest, self.cores)), known

    def line(self, now: float) -> str:
        """`120 of 400 jobs (30 %), sweep_units 34 of 80 (running: 38 %, 61 %), about 4 min left`."""
        text = f"{self.done} of {self.total} jobs ({self.done / max(1, self.total):.0%})".replace("%", " %")
        if self.stage:
            # What most of the running jobs do, the earliest begun among equals.
            running = Counter(one.job.rule for one in self.running.values())
            rule = running.most_common(1)[0][0] if running else self.stage
            text += f", {rule} {self.finished[rule]} of {self.stages[rule]}"
            shares = [f"{share:.0%}".replace("%", " %") for share in self.shares(now).values()]
            text += f" (running: {', '.join(shares)})" if shares else ""
        if now - self._told >= _AGAIN or self._left is None:
            self._told, self._left = now, self.left(now)
        if self._left and self.done < self.total:
            text += f", {'about' if self._left[1] else 'at least'} {spoken(self._left[0])} left"
        return text


class LogHandler(LogHandlerBase):
    """Writes progress to standard error, and every warning and failure in Snakemake's own words."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.stream: TextIO = sys.stdout if settings.stdout else sys.stderr
        self.progress = Progress()
        self.drawn = ""  # the line that stands on the terminal
        self.last = (0, 0.0)  # tenth of the run and time of the last line in a pipe
        self._over = threading.Event()
        self.addFilter(
            DefaultFilter(
                settings.quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds
            )
        )
        self.setFormatter(DefaultFormatter(settings.quiet, settings.show_failed_logs))

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record, or show it."""
        try:
            if self.common_settings.dryrun or self.common_settings.verbose or self._is_news(record):
                self._say(self.format(record))
            elif record.__dict__.get("event") in _COUNTED:
                self._count(record.__dict__, record.created)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._over.set()
        if self.drawn:
            self.stream.write("\n")
            self.drawn = ""
        super().close()

    def _is_news(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            return True
        text = str(record.msg or "")
        return record.__dict__.get("event") not in _SILENT and bool(text.strip()) and not text.startswith(_TALK)

    def _count(self, fields: dict[str, Any], now: float) -> None:
        event, progress = fields["event"], self.progress
        if event == LogEvent.RUN_INFO:
            progress.plan(fields["stats"], now, *_planned())
            threading.Thread(target=self._keep_saying, daemon=True).start()
        elif event == LogEvent.JOB_INFO:
            progress.start(fields["jobid"], fields["rule_name"], now, next(map(Path, fields.get("log") or []), None))
            if fields.get("rule_msg"):  # the message of a rule for its job
                self._say(fields["rule_msg"])
        elif event == LogEvent.JOB_FINISHED:
            progress.finish(fields["job_id"], now)
        elif event == LogEvent.PROGRESS:
            progress.done, progress.total = fields["done"], fields["total"]
        if self.stream.isatty():
            self._draw(progress.line(now))
        elif event in (LogEvent.RUN_INFO, LogEvent.PROGRESS):
            tenth = progress.done * 10 // max(1, progress.total)
            if event == LogEvent.RUN_INFO or tenth > self.last[0] or now - self.last[1] >= _SECONDS:
                self.last = (tenth, now)
                self._say(progress.line(now))

    def _keep_saying(self) -> None:
        """Write a line a minute also while no job begins or ends."""
        while not self._over.wait(_SECONDS):
            self.acquire()
            try:
                if not self._over.is_set() and self.progress.running:
                    self._say_again(time.time())
            finally:
                self.release()

    def _say_again(self, now: float) -> None:
        if self.stream.isatty():
            self._draw(self.progress.line(now))
        elif now - self.last[1] >= _SECONDS:
            self.last = (self.last[0], now)
            self._say(self.progress.line(now))

    def _draw(self, line: str) -> None:
        line = line[: shutil.get_terminal_size().columns - 1]
        self.stream.write("\r" + line.ljust(len(self.drawn)))
        self.stream.flush()
        self.drawn = line

    def _say(self, text: str) -> None:
        if self.drawn:
            self.stream.write("\r" + " " * len(self.drawn) + "\r")
        self.stream.write(text + "\n")
        drawn, self.drawn = self.drawn, ""
        if drawn:
            self._draw(drawn)
        self.stream.flush()


def _planned() -> tuple[dict[int, Waiting], int | None]:
    """The jobs of the run that this process drives, and the cores that they share; None on a cluster."""
    if not _drivers:
        return {}, None
    (workflow,) = _drivers
    return of_graph(workflow.dag), None if workflow.remote_exec else workflow.cores

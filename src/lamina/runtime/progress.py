"""How far a run is, and nothing else unless something goes wrong: Snakemake's logger plugin `lamina`.

On a terminal one line is written over and over; in a pipe there is a line a minute and one for each tenth of the run.
"""

import json
import logging
import math
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TextIO

from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

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
_AGAIN = 5.0  # between two computations of the time left, which reads files
_MEASURED = 60.0  # seconds of jobs before anything is said of the time left
_UNKNOWN = 1.0  # seconds of a job that computes nothing, before one has ended
_NAMED = 2  # rules in a line
# What `lamina.models.workload` writes into the log of a job.
_WORKED = re.compile(
    r"([\d.e+]+) layer-tokens in ([\d.]+) s(?:, ([\d.e+]+) before it)?$", re.MULTILINE
)
_TAIL = 4096  # bytes of a log in which its last report stands

_followed: list[
    tuple[Any, Path]
] = []  # the workflow that this process runs, and the file of its cost


def follow(workflow: Any, cost: Path) -> None:
    """Let the progress know the jobs of a workflow, and the file that rule `estimate_cost` writes in this run."""
    _followed[:] = [(workflow, cost)]


class Worked(NamedTuple):
    """What the log of a job says: layer-tokens of its process and their seconds, and those of killed ones before it."""

    layer_tokens: float
    seconds: float
    earlier: float = 0.0

    @classmethod
    def read(cls, log: Path | None) -> "Worked | None":
        """The last report in a log; None if there is none yet, or no log."""
        if log is None:
            return None
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - _TAIL))
                reports = _WORKED.findall(file.read().decode(errors="replace"))
        except OSError:
            return None
        return cls(*(float(number or 0) for number in reports[-1])) if reports else None


@dataclass
class JobRecord:
    """A job of this run. Times are seconds on the clock of the run; None before the job began or ended."""

    rule: str
    outputs: tuple[str, ...] = ()
    log: Path | None = None
    started: float | None = None
    ended: float | None = None
    worked: Worked | None = None
    layer_tokens: float = 0.0  # that the cost of the run forecasts
    flops: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.started is not None and self.ended is None

    def seconds(self, now: float) -> float:
        """Since it was started, until it ended."""
        return 0.0 if self.started is None else (self.ended or now) - self.started

    @property
    def share(self) -> float | None:
        """The share of its forecast work that is done; None where it is not known."""
        if self.worked is None or not self.layer_tokens:
            return None
        return (self.worked.layer_tokens + self.worked.earlier) / self.layer_tokens


@dataclass
class Pace:
    """How long jobs take, as those took that have ended or say how far they are."""

    start: float  # seconds before a job computes
    by_rule: dict[str, float]  # seconds for a forecast operation
    overall: float | None
    others: dict[str, float]  # seconds of a job that computes nothing, by rule
    other: float

    @classmethod
    def measured(cls, jobs: Iterable[JobRecord], now: float) -> "Pace":
        starts: list[float] = []
        worked: dict[str, list[tuple[float, float]]] = {}  # seconds and operations by rule
        others: dict[str, list[float]] = {}
        for job in jobs:
            if not job.flops and job.ended is not None:
                others.setdefault(job.rule, []).append(job.seconds(now))
            if not job.flops or not job.worked:
                continue
            done = 1.0
            if job.ended is None:
                done = job.worked.layer_tokens / job.layer_tokens
            else:
                starts.append(max(0.0, job.seconds(now) - job.worked.seconds))
            worked.setdefault(job.rule, []).append((job.worked.seconds, done * job.flops))
        every = [pair for pairs in worked.values() for pair in pairs]
        return cls(
            start=fmean(starts) if starts else 0.0,
            by_rule={rule: _ratio(pairs) for rule, pairs in worked.items()},
            overall=_ratio(every) if every else None,
            others={rule: fmean(seconds) for rule, seconds in others.items()},
            other=fmean(chain(*others.values())) if others else _UNKNOWN,
        )

    def left(self, job: JobRecord, now: float) -> float | None:
        """Seconds until a job ends; None if nothing like it was measured, or it has done more than was forecast."""
        if job.ended is not None:
            return 0.0
        if job.share is not None and job.worked and job.worked.layer_tokens:
            if job.share >= 1:
                return None
            done = job.worked.layer_tokens / job.layer_tokens
            return job.worked.seconds * (1 - job.share) / done
        if job.flops:
            pace = self.by_rule.get(job.rule, self.overall)
            if pace is None:
                return None
            whole = self.start + job.flops * pace
        else:
            whole = self.others.get(job.rule, self.other)
        # One that takes longer than it should takes a little longer still.
        return max(whole - job.seconds(now), job.seconds(now) / 10)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(one for one, _ in pairs) / sum(other for _, other in pairs)


@dataclass
class Progress:
    """What is known of a run, in seconds on any one clock; the file `cost` forecasts the work of its jobs."""

    stages: Counter[str] = field(default_factory=Counter)  # jobs of each rule, and `total`
    jobs: dict[int, JobRecord] = field(default_factory=dict)  # those that have to run, by id
    cost: Path | None = None
    begun: float = 0.0
    done: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    _left: str = ""  # what the line said last, and when
    _computed: float = -_AGAIN

    def start(self, job: int, rule: str, now: float) -> None:
        """Count a job that was started."""
        record = self.jobs.setdefault(job, JobRecord(rule))
        record.started, record.ended, record.worked = now, None, None

    def finish(self, job: int, now: float) -> None:
        """Count a job that ended well."""
        record = self.jobs.setdefault(job, JobRecord("", started=now))
        record.ended, record.worked = now, Worked.read(record.log)
        self.finished[record.rule] += 1

    @property
    def running(self) -> list[JobRecord]:
        """The jobs under way, the one that was started first in front."""
        jobs = [job for job in self.jobs.values() if job.is_running]
        return sorted(jobs, key=lambda job: job.started or 0.0)

    def left(self, now: float) -> float | None:
        """Seconds to the end at the pace so far; None before a minute of work was measured."""
        self._forecast()
        for job in self.running:
            job.worked = Worked.read(job.log)
        jobs = list(self.jobs.values())
        seen = sum(
            job.seconds(now) if job.ended is not None else job.worked.seconds if job.worked else 0.0
            for job in jobs
        )
        if seen < _MEASURED:
            return None
        pace = Pace.measured(jobs, now)
        every = [pace.left(job, now) for job in jobs]
        if None in every:
            return None
        seconds = [left for left in every if left is not None]
        # Jobs go on beside each other as they did so far, and none ends before it is done.
        together = max(1.0, sum(job.seconds(now) for job in jobs) / max(1.0, now - self.begun))
        return max(sum(seconds) / together, max(seconds, default=0.0))

    def line(self, now: float) -> str:
        """`120 of 400 jobs (30 %), 21 min: search_plans 34 %, sweep_units 34 of 80; 20 to 30 min left`."""
        if now - self._computed >= _AGAIN:
            self._computed, left = now, self.left(now)
            self._left = "" if left is None else f"; {spoken_range(left, now - self.begun)} left"
        total = self.stages["total"]
        text = f"{self.done} of {total} jobs ({100 * self.done / max(1, total):.0f} %)"
        text += f", {spoken(now - self.begun)}" if now > self.begun else ""
        rules = dict.fromkeys(job.rule for job in self.running)
        named = ", ".join(self._named(rule) for rule in list(rules)[:_NAMED])
        text += f": {named}" if named else ""
        return text if self.done >= total else text + self._left

    def _named(self, rule: str) -> str:
        """A rule that runs, and how far it is."""
        if self.stages[rule] > 1:
            return f"{rule} {self.finished[rule]} of {self.stages[rule]}"
        (share, *_) = [job.share for job in self.running if job.rule == rule]
        return rule if share is None or share >= 1 else f"{rule} {100 * share:.0f} %"

    def _forecast(self) -> None:
        """Give the jobs what the cost of the run says of them, once it is there."""
        if self.cost is None or any(job.flops for job in self.jobs.values()):
            return
        with suppress(OSError, ValueError, KeyError, TypeError):
            forecast = json.loads(self.cost.read_text(encoding="utf-8"))["jobs"]
            for job in self.jobs.values():
                for output in job.outputs:
                    if output in forecast:
                        job.layer_tokens = forecast[output]["layer_tokens"]
                        job.flops = forecast[output]["flops"]


def spoken(seconds: float) -> str:
    """A time in the unit that a person would use."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spoken_range(left: float, past: float) -> str:
    """About how long something takes that is `left` where as much as was `past` is known: `20 to 30 min`."""
    apart = 1 + 0.5 * left / (left + past)
    if left * apart < 90:
        return "less than 2 min"
    unit, seconds = ("min", 60.0) if left * apart < 5400 else ("h", 3600.0)
    coarse = 5 if left / seconds > 12 else 1 if unit == "min" or left / seconds > 5 else 0.5
    least = max(coarse, coarse * math.floor(left / apart / seconds / coarse))
    most = coarse * math.ceil(left * apart / seconds / coarse)
    return f"{least:g} to {most:g} {unit}" if least < most else f"about {most:g} {unit}"


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
                for job in workflow.dag.needrun_jobs(exclude_finished=False):
                    log = Path(job.log[0]) if job.log else None
                    record = JobRecord(job.rule.name, tuple(map(str, job.output)), log)
                    progress.jobs[job.jobid] = record
            threading.Thread(target=self._keep_saying, daemon=True).start()
        elif event == LogEvent.JOB_INFO:
            progress.start(fields["jobid"], fields["rule_name"], now)
            if fields.get("rule_msg"):  # the message of a rule for its job
                self._say(fields["rule_msg"])
        elif event == LogEvent.JOB_FINISHED:
            progress.finish(fields["job_id"], now)
        else:
            progress.done, progress.stages["total"] = fields["done"], fields["total"]
        if self.stream.isatty() or event in (LogEvent.RUN_INFO, LogEvent.PROGRESS):
            self._tell(now)

    def _keep_saying(self) -> None:
        """Write a line a minute also while no job begins or ends."""
        while not self._over.wait(_SECONDS):
            with self.lock or threading.RLock():
                if not self._over.is_set() and self.progress.running:
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

"""How far a run is and how long it will take, from its jobs, their logs and the forecast cost."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lamina_workflow.runtime.resources import threads_of_job
from lamina_workflow.runtime.schedule import Capacity, WaitingJob, schedule_jobs

_REFRESH_SECONDS = 5.0  # between two computations of the time left, at least
_MEASURED_SECONDS = 60.0  # of jobs, before the time left is shown
_LIGHT_SECONDS = 1.0  # of a job that does not compute, before one has ended
# The factor by which a job may differ from a forecast based on its own rule, and on others.
_MEASURED = 1.25
_UNKNOWN = 1.5
_MAX_NAMED_RULES = 2  # in one line
_LONG_SECONDS = 10.0  # after which the line says how long a job has been running
# What `lamina.models.workload` writes into the log of a job.
WORK_REPORT = re.compile(
    r"([\d.e+]+) layer-tokens in ([\d.]+) s(?:, ([\d.e+]+) before it)?(?:, (\d+ of \d+ \w+))?$",
    re.MULTILINE,
)
_LOG_TAIL = 4096  # bytes at the end of a log that contain its last report


class WorkReport(NamedTuple):
    """A job's report of its work in its log.

    layer_tokens: Those of its process.
    seconds: How long they took.
    earlier: Layer-tokens of killed processes whose results the job continues from.
    counted: How much of its work is done: `41 of 120 sets`. Empty if it does not count.
    """

    layer_tokens: float
    seconds: float
    earlier: float = 0.0
    counted: str = ""

    @classmethod
    def read(cls, log: Path | None) -> "WorkReport | None":
        """The last report in a log; None if there is no report yet, or no log."""
        if log is None:
            return None
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - _LOG_TAIL))
                tail = file.read().decode(errors="replace")
        except OSError:
            return None
        reports = WORK_REPORT.findall(tail)
        if not reports:
            return None
        layer_tokens, seconds, earlier, counted = reports[-1]
        return cls(float(layer_tokens), float(seconds), float(earlier or 0), counted)


@dataclass
class JobRecord:
    """A job of this run.

    computes: Whether it loads a model. Then its duration is known only from jobs of its rule or
        from a forecast.
    needs: The jobs whose outputs it reads.
    threads: The threads that it uses; 0 if this is not known before it starts.

    Times are seconds on the clock of the run; None before the job started or ended.
    """

    rule: str
    outputs: tuple[str, ...] = ()
    log: Path | None = None
    computes: bool = False
    needs: frozenset[int] = frozenset()
    threads: int = 0
    started: float | None = None
    ended: float | None = None
    report: WorkReport | None = None
    layer_tokens: float = 0.0  # as forecast in the cost of the run
    flops: float = 0.0  # likewise

    @property
    def is_running(self) -> bool:
        return self.started is not None and self.ended is None

    def elapsed(self, now: float) -> float:
        """Seconds from its start to its end, or until now."""
        if self.started is None:
            return 0.0
        return (self.ended or now) - self.started

    @property
    def share(self) -> float | None:
        """The share of its forecast work that is done; None if it is not known."""
        if self.report is None or not self.layer_tokens:
            return None
        return (self.report.layer_tokens + self.report.earlier) / self.layer_tokens


class Guess(NamedTuple):
    """Seconds that are probably between `seconds / factor` and `seconds * factor`."""

    seconds: float
    factor: float


@dataclass
class Pace:
    """How long jobs take, judging by those that have ended or report their progress.

    start_seconds: Time before a job computes.
    by_rule: Seconds of one thread per forecast operation, by rule.
    seconds_by_rule: Seconds of a job without forecast operations, by rule.
    light_rules: Those of these rules whose jobs do not compute.
    usual_threads: Threads of a computing job that does not state its own.

    A rule without measurements is assigned the mean of the others. Each of them counts once,
    because hundreds of short jobs tell little about another rule.
    """

    start_seconds: float
    by_rule: dict[str, float]
    seconds_by_rule: dict[str, float]
    light_rules: set[str]
    usual_threads: int = 1

    @classmethod
    def measure(cls, jobs: Iterable[JobRecord], now: float, usual_threads: int = 1) -> "Pace":
        """The pace of the jobs of a run so far."""
        starts: list[float] = []
        computed_seconds: dict[str, float] = {}
        computed_flops: dict[str, float] = {}
        seconds_by_rule: dict[str, list[float]] = {}
        light_rules: set[str] = set()
        for job in jobs:
            if job.flops and job.report and job.report.layer_tokens:
                computed = job.report.layer_tokens
                if job.ended is None:
                    done = computed / job.layer_tokens
                else:
                    # The rest was done by a killed process, in seconds that are not counted here.
                    done = computed / (computed + job.report.earlier)
                    starts.append(max(0.0, job.elapsed(now) - job.report.seconds))
                threads = job.threads or usual_threads
                seconds = threads * job.report.seconds
                computed_seconds[job.rule] = computed_seconds.get(job.rule, 0.0) + seconds
                computed_flops[job.rule] = computed_flops.get(job.rule, 0.0) + done * job.flops
            elif not job.flops and job.ended is not None:
                seconds_by_rule.setdefault(job.rule, []).append(job.elapsed(now))
                if not job.computes:
                    light_rules.add(job.rule)
        return cls(
            start_seconds=fmean(starts) if starts else 0.0,
            by_rule={
                rule: computed_seconds[rule] / computed_flops[rule] for rule in computed_flops
            },
            seconds_by_rule={rule: fmean(seconds) for rule, seconds in seconds_by_rule.items()},
            light_rules=light_rules,
            usual_threads=usual_threads,
        )

    def guess_left(self, job: JobRecord, now: float) -> Guess | None:
        """Seconds until a job ends; None if nothing like it was measured."""
        if job.share is not None and job.report and job.report.layer_tokens and job.share < 1:
            done = job.report.layer_tokens / job.layer_tokens
            seconds = job.report.seconds * (1 - job.share) / done
            return Guess(seconds, 1 + (1 - job.share) / 2)
        forecast = self._forecast(job)
        if forecast is None:
            return None
        elapsed = job.elapsed(now)
        if elapsed < forecast.seconds:
            return forecast._replace(seconds=forecast.seconds - elapsed)
        # A job that exceeds its forecast is expected to take a little longer.
        return Guess(elapsed / 10, _UNKNOWN)

    def _forecast(self, job: JobRecord) -> Guess | None:
        """Seconds of a whole job; None if it computes and nothing like it was measured."""
        if job.flops:
            if not self.by_rule:
                return None
            pace = self.by_rule.get(job.rule, fmean(self.by_rule.values()))
            threads = job.threads or self.usual_threads
            seconds = self.start_seconds + job.flops * pace / threads
            return Guess(seconds, _MEASURED if job.rule in self.by_rule else _UNKNOWN)
        if job.rule in self.seconds_by_rule:
            return Guess(self.seconds_by_rule[job.rule], _MEASURED)
        if job.computes:
            return None
        light_seconds = [self.seconds_by_rule[rule] for rule in self.light_rules]
        return Guess(fmean(light_seconds or [_LIGHT_SECONDS]), _UNKNOWN)


@dataclass
class RunProgress:
    """The state of a run, in seconds on any one clock.

    job_counts: Number of jobs of each rule, and `total`.
    jobs: The jobs that have to run, by id.
    cost: The file with the forecast of their work, if `make plan` has written it.
    machine: The machine that runs them; None if they run on a cluster.
    begun: When the run began.
    n_done: Number of jobs that have ended, as Snakemake counts them.
    finished: The same by rule.
    """

    job_counts: Counter[str] = field(default_factory=Counter)
    jobs: dict[int, JobRecord] = field(default_factory=dict)
    cost: Path | None = None
    machine: Capacity | None = None
    begun: float = 0.0
    n_done: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    # The last displayed time left, and when to compute it again.
    _left: Guess | None = None
    _next_refresh: float = 0.0

    def start(self, job: int, rule: str, now: float, threads: int = 0) -> None:
        """Record that a job has started."""
        record = self.jobs.setdefault(job, JobRecord(rule))
        record.threads = threads
        record.started = now
        record.ended = None
        record.report = None

    def finish(self, job: int, now: float) -> None:
        """Record that a job has succeeded."""
        record = self.jobs.setdefault(job, JobRecord("", started=now))
        record.ended = now
        record.report = WorkReport.read(record.log)
        self.finished[record.rule] += 1

    @property
    def running(self) -> list[JobRecord]:
        """The running jobs, in the order in which they were started."""
        jobs = [job for job in self.jobs.values() if job.is_running]
        return sorted(jobs, key=lambda job: job.started or 0.0)

    def guess_left(self, now: float) -> Guess | None:
        """Seconds to the end at the pace so far.

        None before a minute of work is measured, and if the work left is unknown.
        """
        if len(self.jobs) < self.job_counts["total"]:
            return None
        self._read_forecast()
        for job in self.running:
            job.report = WorkReport.read(job.log)
        if sum(_measured_seconds(job, now) for job in self.jobs.values()) < _MEASURED_SECONDS:
            return None
        usual_threads = threads_of_job(self.machine.cores if self.machine else None)
        pace = Pace.measure(self.jobs.values(), now, usual_threads)
        guesses: list[Guess] = []
        waiting: dict[int, WaitingJob] = {}
        for number, job in self.jobs.items():
            if job.ended is not None:
                continue
            guess = pace.guess_left(job, now)
            if guess is None:
                return None
            guesses.append(guess)
            takes = Capacity(1)
            if self.machine and job.computes:
                takes = Capacity(job.threads or usual_threads, gpus=1)
            waiting[number] = WaitingJob(guess.seconds, job.needs, takes, job.is_running)
        seconds = sum(guess.seconds for guess in guesses)
        if not seconds:
            return Guess(0.0, 1.0)
        mean_factor = sum(guess.seconds * guess.factor for guess in guesses) / seconds
        # On a cluster, assume that as many jobs run at a time as do now.
        machine = self.machine or Capacity(max(1, len(self.running)))
        return Guess(schedule_jobs(waiting, machine), mean_factor)

    def line(self, now: float) -> str:
        """The state of the run in one line, such as
        `120 of 400 jobs, 21 min (46 %): search_plans (41 of 120 sets, 34 %); 20 to 30 min left`.

        The percentage is a share of the time, and so of the forecast work. The number of jobs would
        mislead, because jobs differ too much.
        """
        if now >= self._next_refresh:
            begun = time.perf_counter()
            self._left = self.guess_left(now)
            # For 100,000 jobs this takes seconds. It may use a twentieth of the time.
            seconds = 20 * (time.perf_counter() - begun)
            self._next_refresh = now + max(_REFRESH_SECONDS, seconds)
        total = self.job_counts["total"]
        left = self._left if self.n_done < total else None
        elapsed = now - self.begun
        text = f"{self.n_done} of {total} jobs"
        if elapsed > 0:
            text += f", {format_seconds(elapsed)}"
        if left is not None and elapsed > 0:
            # A run is not over before its last job is.
            percentage = min(99, round(100 * elapsed / (elapsed + left.seconds)))
            text += f" ({percentage} %)"
        running = self.running
        rules = list(dict.fromkeys(job.rule for job in running))
        if rules:
            described = [self._describe_rule(rule, now) for rule in rules[:_MAX_NAMED_RULES]]
            text += f": {', '.join(described)}"
        return f"{text}; {spoken_range(left)} left" if left is not None else text

    def _describe_rule(self, rule: str, now: float) -> str:
        """A running rule, with its progress and that of its first running job."""
        job = next(job for job in self.running if job.rule == rule)
        text = rule
        if self.job_counts[rule] > 1:
            text += f" {self.finished[rule]} of {self.job_counts[rule]}"
        details: list[str] = []
        if job.report and job.report.counted:
            details.append(job.report.counted)
        if job.share is not None and job.share < 1:
            details.append(f"{100 * job.share:.0f} %")
        if not details and job.elapsed(now) >= _LONG_SECONDS:
            details.append(format_seconds(job.elapsed(now)))
        return f"{text} ({', '.join(details)})" if details else text

    def _read_forecast(self) -> None:
        """Give the jobs their forecast work, if the run's cost file exists."""
        if self.cost is None or any(job.flops for job in self.jobs.values()):
            return
        if any(not job.ended and str(self.cost) in job.outputs for job in self.jobs.values()):
            return  # the file is that of an earlier configuration
        with suppress(OSError, ValueError, KeyError, TypeError):
            forecast = json.loads(self.cost.read_text(encoding="utf-8"))["jobs"]
            for job in self.jobs.values():
                for output in job.outputs:
                    if output in forecast:
                        job.layer_tokens = forecast[output]["layer_tokens"]
                        job.flops = forecast[output]["flops"]


def _measured_seconds(job: JobRecord, now: float) -> float:
    """Seconds of a job that count for the pace: all of an ended job, else of its work."""
    if job.ended is not None:
        return job.elapsed(now)
    return job.report.seconds if job.report else 0.0


def format_seconds(seconds: float) -> str:
    """A time in the unit that a person would use."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def spoken_range(left: Guess) -> str:
    """A time left as a range, such as `20 to 30 min`."""
    longest = left.seconds * left.factor
    if longest < 90:
        return "less than 2 min"
    if longest < 5400:
        unit = "min"
        unit_seconds = 60.0
    else:
        unit = "h"
        unit_seconds = 3600.0
    step = _rounding_step(left.seconds / unit_seconds, unit)
    least = max(step, step * math.floor(left.seconds / left.factor / unit_seconds / step))
    most = step * math.ceil(longest / unit_seconds / step)
    return f"{least:g} to {most:g} {unit}" if least < most else f"about {most:g} {unit}"


def _rounding_step(units_left: float, unit: str) -> float:
    if units_left > 12:
        return 5
    return 1 if unit == "min" or units_left > 5 else 0.5

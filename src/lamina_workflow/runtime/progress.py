"""How far a run is, and how long it will take: from its jobs, their logs and the forecast cost."""

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
_MEASURED_SECONDS = 60.0  # seconds of jobs before anything is said of the time left
_LIGHT_SECONDS = 1.0  # of a job that computes nothing, before one has ended
# By which factor a job may take longer or shorter than forecast from its rule, and from others.
_MEASURED = 1.25
_UNKNOWN = 1.5
_MAX_NAMED_RULES = 2  # in a line
_LONG_SECONDS = 10.0  # of a job after which the line says how long it has run
# What `lamina.models.workload` writes into the log of a job.
WORK_REPORT = re.compile(
    r"([\d.e+]+) layer-tokens in ([\d.]+) s(?:, ([\d.e+]+) before it)?(?:, (\d+ of \d+ \w+))?$",
    re.MULTILINE,
)
_LOG_TAIL = 4096  # bytes of a log in which its last report stands


class WorkReport(NamedTuple):
    """What the log of a job says of its work.

    layer_tokens: Those of its process.
    seconds: How long they took.
    earlier: The layer-tokens of killed processes whose results the job goes on from.
    counted: What it has done of what it does: `41 of 120 sets`. Empty if it does not count.
    """

    layer_tokens: float
    seconds: float
    earlier: float = 0.0
    counted: str = ""

    @classmethod
    def read(cls, log: Path | None) -> "WorkReport | None":
        """The last report in a log; None if there is none yet, or no log."""
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

    computes: Whether it loads a model. Then only jobs of its rule, or a forecast, say how long
        it takes.
    needs: The jobs whose outputs it reads.
    threads: That it takes; 0 where this is not known before it begins.

    Times are seconds on the clock of the run; None before the job began or ended.
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
    layer_tokens: float = 0.0  # that the cost of the run forecasts
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
        """The share of its forecast work that is done; None where it is not known."""
        if self.report is None or not self.layer_tokens:
            return None
        return (self.report.layer_tokens + self.report.earlier) / self.layer_tokens


class Guess(NamedTuple):
    """Seconds that are probably between `seconds / factor` and `seconds * factor`."""

    seconds: float
    factor: float


@dataclass
class Pace:
    """How long jobs take, by those that have ended or report how far they are.

    start_seconds: Before a job computes.
    by_rule: Seconds of one thread for a forecast operation, by rule.
    seconds_by_rule: Seconds of a job whose operations no forecast says, by rule.
    light_rules: The rules among these whose jobs compute nothing.
    usual_threads: Of a job that computes, if it does not say its own.

    A rule of which nothing was measured is taken for the mean of the others, each of which counts
    once: hundreds of short jobs say little of another rule.
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
            if job.flops and job.report:
                done = 1.0
                if job.ended is None:
                    done = job.report.layer_tokens / job.layer_tokens
                else:
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
        # One that takes longer than it should takes a little longer still.
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
    """What is known of a run, in seconds on any one clock.

    job_counts: Jobs of each rule, and `total`.
    jobs: Those that have to run, by id.
    cost: The file that forecasts their work, if `make plan` has written it.
    machine: That runs them; None if they run on a cluster.
    begun: When the run began.
    n_done: Jobs that have ended, by Snakemake's count.
    finished: The same by rule.
    """

    job_counts: Counter[str] = field(default_factory=Counter)
    jobs: dict[int, JobRecord] = field(default_factory=dict)
    cost: Path | None = None
    machine: Capacity | None = None
    begun: float = 0.0
    n_done: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    # What the line said last of the time left, and when it is computed again.
    _left: Guess | None = None
    _next_refresh: float = 0.0

    def start(self, job: int, rule: str, now: float, threads: int = 0) -> None:
        """Count a job that was started."""
        record = self.jobs.setdefault(job, JobRecord(rule))
        record.threads = threads
        record.started = now
        record.ended = None
        record.report = None

    def finish(self, job: int, now: float) -> None:
        """Count a job that ended well."""
        record = self.jobs.setdefault(job, JobRecord("", started=now))
        record.ended = now
        record.report = WorkReport.read(record.log)
        self.finished[record.rule] += 1

    @property
    def running(self) -> list[JobRecord]:
        """The jobs under way, in the order in which they were started."""
        jobs = [job for job in self.jobs.values() if job.is_running]
        return sorted(jobs, key=lambda job: job.started or 0.0)

    def guess_left(self, now: float) -> Guess | None:
        """Seconds to the end at the pace so far.

        None before a minute of work was measured, and where nothing says what is left.
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
        # On a cluster, as many jobs run at a time as do now.
        machine = self.machine or Capacity(max(1, len(self.running)))
        return Guess(schedule_jobs(waiting, machine), mean_factor)

    def line(self, now: float) -> str:
        """The state of the run in one line, such as
        `120 of 400 jobs, 21 min (46 %): search_plans (41 of 120 sets, 34 %); 20 to 30 min left`.

        The share is that of the time, and so of the work that was forecast: jobs differ too much for
        their number to say it.
        """
        if now >= self._next_refresh:
            begun = time.perf_counter()
            self._left = self.guess_left(now)
            # Of a hundred thousand jobs it takes seconds; a twentieth of the time may go into it.
            seconds = 20 * (time.perf_counter() - begun)
            self._next_refresh = now + max(_REFRESH_SECONDS, seconds)
        total = self.job_counts["total"]
        left = self._left if self.n_done < total else None
        elapsed = now - self.begun
        text = f"{self.n_done} of {total} jobs"
        if elapsed > 0:
            text += f", {format_seconds(elapsed)}"
        if left is not None and elapsed > 0:
            # It is not over before its last job is.
            percentage = min(99, round(100 * elapsed / (elapsed + left.seconds)))
            text += f" ({percentage} %)"
        running = self.running
        rules = list(dict.fromkeys(job.rule for job in running))
        if rules:
            described = [self._describe_rule(rule, now) for rule in rules[:_MAX_NAMED_RULES]]
            text += f": {', '.join(described)}"
        return f"{text}; {spoken_range(left)} left" if left is not None else text

    def _describe_rule(self, rule: str, now: float) -> str:
        """A rule that runs, and how far it and the first of its jobs that run are."""
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
        """Give the jobs what the cost of the run says of them, if its file exists."""
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
    """Seconds of a job that say something of the pace: all of an ended one, else its work."""
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

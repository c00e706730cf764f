"""How far a run is, and how long it will take: from its jobs, their logs and the forecast cost."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

_REFRESH_SECONDS = 5.0  # between two computations of the time left, which reads files
_MEASURED_SECONDS = 60.0  # seconds of jobs before anything is said of the time left
_UNKNOWN_SECONDS = 1.0  # of a job that computes nothing, before one has ended
_MAX_NAMED_RULES = 2  # in a line
# What `lamina.models.workload` writes into the log of a job.
_WORK_REPORT = re.compile(
    r"([\d.e+]+) layer-tokens in ([\d.]+) s(?:, ([\d.e+]+) before it)?$", re.MULTILINE
)
_LOG_TAIL = 4096  # bytes of a log in which its last report stands


class WorkReport(NamedTuple):
    """What the log of a job says of its work.

    layer_tokens: Those of its process.
    seconds: How long they took.
    earlier: The layer-tokens of killed processes whose results the job goes on from.
    """

    layer_tokens: float
    seconds: float
    earlier: float = 0.0

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
        reports = _WORK_REPORT.findall(tail)
        if not reports:
            return None
        return cls(*(float(number or 0) for number in reports[-1]))


@dataclass
class JobRecord:
    """A job of this run.

    computes: Whether it loads a model. Then only jobs of its rule, or a forecast, say how long
        it takes.

    Times are seconds on the clock of the run; None before the job began or ended.
    """

    rule: str
    outputs: tuple[str, ...] = ()
    log: Path | None = None
    computes: bool = False
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


class _Measurement(NamedTuple):
    """The seconds that forecast operations took."""

    seconds: float
    flops: float


def _seconds_per_flop(measurements: Sequence[_Measurement]) -> float:
    seconds = sum(measurement.seconds for measurement in measurements)
    return seconds / sum(measurement.flops for measurement in measurements)


@dataclass
class Pace:
    """How long jobs take, by those that have ended or report how far they are.

    start_seconds: Before a job computes.
    by_rule: Seconds for a forecast operation, by rule.
    overall: The same over all rules; None before any was measured.
    seconds_by_rule: Seconds of a job whose operations no forecast says, by rule.
    light: The same over all jobs that compute nothing.
    """

    start_seconds: float
    by_rule: dict[str, float]
    overall: float | None
    seconds_by_rule: dict[str, float]
    light: float

    @classmethod
    def measure(cls, jobs: Iterable[JobRecord], now: float) -> "Pace":
        """The pace of the jobs of a run so far."""
        starts: list[float] = []
        measurements: dict[str, list[_Measurement]] = {}
        seconds_by_rule: dict[str, list[float]] = {}
        light_seconds: list[float] = []
        for job in jobs:
            if not job.flops and job.ended is not None:
                seconds_by_rule.setdefault(job.rule, []).append(job.elapsed(now))
                if not job.computes:
                    light_seconds.append(job.elapsed(now))
            if not job.flops or not job.report:
                continue
            done = 1.0
            if job.ended is None:
                done = job.report.layer_tokens / job.layer_tokens
            else:
                starts.append(max(0.0, job.elapsed(now) - job.report.seconds))
            measurement = _Measurement(job.report.seconds, done * job.flops)
            measurements.setdefault(job.rule, []).append(measurement)
        every_measurement = list(chain(*measurements.values()))
        return cls(
            start_seconds=fmean(starts) if starts else 0.0,
            by_rule={rule: _seconds_per_flop(pairs) for rule, pairs in measurements.items()},
            overall=_seconds_per_flop(every_measurement) if every_measurement else None,
            seconds_by_rule={rule: fmean(seconds) for rule, seconds in seconds_by_rule.items()},
            light=fmean(light_seconds) if light_seconds else _UNKNOWN_SECONDS,
        )

    def seconds_left(self, job: JobRecord, now: float) -> float | None:
        """Seconds until a job ends.

        None if nothing like it was measured, or if it has done more than was forecast.
        """
        if job.ended is not None:
            return 0.0
        if job.share is not None and job.report and job.report.layer_tokens:
            if job.share >= 1:
                return None
            done = job.report.layer_tokens / job.layer_tokens
            return job.report.seconds * (1 - job.share) / done
        forecast = self._forecast(job)
        if forecast is None:
            return None
        # One that takes longer than it should takes a little longer still.
        return max(forecast - job.elapsed(now), job.elapsed(now) / 10)

    def _forecast(self, job: JobRecord) -> float | None:
        """Seconds of a whole job; None if it computes and nothing like it was measured."""
        if not job.flops:
            unknown_seconds = None if job.computes else self.light
            return self.seconds_by_rule.get(job.rule, unknown_seconds)
        seconds_per_flop = self.by_rule.get(job.rule, self.overall)
        if seconds_per_flop is None:
            return None
        return self.start_seconds + job.flops * seconds_per_flop


@dataclass
class RunProgress:
    """What is known of a run, in seconds on any one clock.

    job_counts: Jobs of each rule, and `total`.
    jobs: Those that have to run, by id.
    cost: The file that forecasts their work, if `make plan` has written it.
    begun: When the run began.
    n_done: Jobs that have ended, by Snakemake's count.
    finished: The same by rule.
    """

    job_counts: Counter[str] = field(default_factory=Counter)
    jobs: dict[int, JobRecord] = field(default_factory=dict)
    cost: Path | None = None
    begun: float = 0.0
    n_done: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    # What the line said last of the time left, and when.
    _time_left: str = ""
    _refreshed: float = -_REFRESH_SECONDS

    def start(self, job: int, rule: str, now: float) -> None:
        """Count a job that was started."""
        record = self.jobs.setdefault(job, JobRecord(rule))
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

    def seconds_left(self, now: float) -> float | None:
        """Seconds to the end at the pace so far; None before a minute of work was measured."""
        self._read_forecast()
        for job in self.running:
            job.report = WorkReport.read(job.log)
        jobs = list(self.jobs.values())
        if sum(_measured_seconds(job, now) for job in jobs) < _MEASURED_SECONDS:
            return None
        pace = Pace.measure(jobs, now)
        seconds_by_job: list[float] = []
        for job in jobs:
            seconds = pace.seconds_left(job, now)
            if seconds is None:
                return None
            seconds_by_job.append(seconds)
        # As many jobs run at a time as did so far, and none ends before it is done.
        elapsed = sum(job.elapsed(now) for job in jobs)
        n_parallel = max(1.0, elapsed / max(1.0, now - self.begun))
        return max(sum(seconds_by_job) / n_parallel, max(seconds_by_job, default=0.0))

    def line(self, now: float) -> str:
        """The state of the run in one line, such as
        `120 of 400 jobs (30 %), 21 min: search_plans 34 %, sweep_units 34 of 80; 20 to 30 min left`.
        """
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            left = self.seconds_left(now)
            self._time_left = ""
            if left is not None:
                self._time_left = f"; {spoken_range(left, now - self.begun)} left"
        total = self.job_counts["total"]
        text = f"{self.n_done} of {total} jobs ({100 * self.n_done / max(1, total):.0f} %)"
        if now > self.begun:
            text += f", {format_seconds(now - self.begun)}"
        rules = list(dict.fromkeys(job.rule for job in self.running))
        if rules:
            described = [self._describe_rule(rule) for rule in rules[:_MAX_NAMED_RULES]]
            text += f": {', '.join(described)}"
        return text if self.n_done >= total else text + self._time_left

    def _describe_rule(self, rule: str) -> str:
        """A rule that runs, and how far it is."""
        if self.job_counts[rule] > 1:
            return f"{rule} {self.finished[rule]} of {self.job_counts[rule]}"
        share = next(job.share for job in self.running if job.rule == rule)
        return rule if share is None or share >= 1 else f"{rule} {100 * share:.0f} %"

    def _read_forecast(self) -> None:
        """Give the jobs what the cost of the run says of them, if its file exists."""
        if self.cost is None or any(job.flops for job in self.jobs.values()):
            return
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


def spoken_range(left: float, past: float) -> str:
    """A forecast of `left` seconds after `past` ones, as a range: `20 to 30 min`.

    The range is the wider, the less is past.
    """
    factor = 1 + 0.5 * left / (left + past)
    if left * factor < 90:
        return "less than 2 min"
    if left * factor < 5400:
        unit = "min"
        unit_seconds = 60.0
    else:
        unit = "h"
        unit_seconds = 3600.0
    step = _rounding_step(left / unit_seconds, unit)
    least = max(step, step * math.floor(left / factor / unit_seconds / step))
    most = step * math.ceil(left * factor / unit_seconds / step)
    return f"{least:g} to {most:g} {unit}" if least < most else f"about {most:g} {unit}"


def _rounding_step(units_left: float, unit: str) -> float:
    if units_left > 12:
        return 5
    return 1 if unit == "min" or units_left > 5 else 0.5

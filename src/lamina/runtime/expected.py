"""Seconds that the jobs of a run take: predicted from their arithmetic, and corrected by those that have been timed.

Rule `estimate_cost` counts the arithmetic of every job that computes. Until it has, and for jobs that compute little,
a job takes the seconds that are usual for its rule.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COST = Path("results/cost.json")

# Seconds of a job beside its counted arithmetic, on two cores: rounded means of the embedded study. Others take USUAL.
BESIDE = {
    "benchmark_efficiency": 10.0,
    "check_overlap": 0.7,
    "compare_metrics": 6.0,
    "compare_selectors": 4.0,
    "diagnose_layers": 5.0,
    "gather_sweep": 0.5,
    "gather_table": 0.7,
    "plot_figure": 1.7,
    "render_report": 5.0,
}
USUAL = 1.0
# FLOP/s of a job before any was timed, on a thread of a CPU: half of FASTEST where streams have HALF channels. So it is
# 2e10 for the embedded model (64 channels) and 7e10 for SmolLM2-135M (576), as seen. Healings compute at half the pace.
FASTEST, HALF = 1e11, 256
# A machine starts, reads and writes at most so many times slower than usual. Once arithmetic is counted, a job without
# any that took longer has done other work.
SLOWEST = 4.0


@dataclass(frozen=True)
class Waiting:
    """A job that the run has to do: its rule, the files that it writes, its threads, and the jobs before it."""

    rule: str
    outputs: tuple[str, ...] = ()
    threads: int = 1
    priority: int = 0
    after: tuple[int, ...] = ()


def of_graph(graph: Any) -> dict[int, Waiting]:
    """The jobs of Snakemake's graph that have to run, by their numbers."""
    # A copy at once: messages are handled beside the thread that works on the graph.
    jobs = list(graph.needrun_jobs(exclude_finished=False))
    return {
        job.jobid: Waiting(
            job.rule.name,
            tuple(map(str, job.output)),
            _threads(job),
            int(job.rule.priority),
            tuple(before.jobid for before in list(graph.dependencies[job])),
        )
        for job in jobs
    }


def _threads(job: Any) -> int:
    """What the job's rule asks for; Snakemake's own answer asks for memory too, and for models not prepared yet."""
    asked = job.rule.resources["_cores"]
    return int(asked if isinstance(asked, int) else asked.evaluate(job.wildcards).value)


@dataclass
class Expected:
    """What jobs are expected to take, in seconds.

    Attributes
    ----------
    cost : the file that rule `estimate_cost` writes.
    """

    cost: Path = COST
    _flops: Mapping[str, float] = field(default_factory=dict)
    _rate: float = FASTEST
    _read: int = 0  # when that file was written, as last read

    @property
    def counted(self) -> bool:
        """Whether the arithmetic of jobs is known."""
        return bool(self._flops)

    def look(self) -> None:
        """Read what the jobs cost, if it was counted since the last look. A file that cannot be read says nothing."""
        try:
            written = self.cost.stat().st_mtime_ns
            if written != self._read:
                told = json.loads(self.cost.read_text(encoding="utf-8"))
                self._read, self._flops = written, told["jobs"]
                self._rate = FASTEST * told["width"] / (told["width"] + HALF)
        except (OSError, ValueError, KeyError):
            pass

    def predicted(self, job: Waiting) -> float:
        """Seconds of a job by its arithmetic, before any correction."""
        return BESIDE.get(job.rule, USUAL) + self._arithmetic(job) / self._rate

    def _arithmetic(self, job: Waiting) -> float:
        return max((self._flops.get(output, 0.0) for output in job.outputs), default=0.0)

    def corrected(self, jobs: Iterable[Waiting], timed: Iterable[tuple[Waiting, float]]) -> dict[Waiting, float]:
        """Seconds of each of `jobs`, given those of other jobs that were timed.

        Jobs of a rule take as much longer than predicted as its timed jobs took. Those of a rule of which none was
        timed follow all timed jobs of their kind together, and these also count as a quarter of a job of each rule. The
        kinds are jobs that compute, and those that only start, read and write: neither tells how slow the other is.
        """
        taken: dict[str, float] = {}
        foreseen: dict[str, float] = {}
        count: dict[str, int] = {}
        computing: set[str] = set()
        for job, seconds in timed:
            if self._arithmetic(job):
                computing.add(job.rule)
            taken[job.rule] = taken.get(job.rule, 0.0) + seconds
            foreseen[job.rule] = foreseen.get(job.rule, 0.0) + self.predicted(job)
            count[job.rule] = count.get(job.rule, 0) + 1
        ratios = {rule: math.log(seconds / foreseen[rule]) for rule, seconds in taken.items() if seconds > 0}
        every = {
            kind: math.exp(_mean({rule: ratios[rule] for rule in ratios if (rule in computing) == kind}, foreseen))
            for kind in (True, False)
        }
        if self.counted:
            every[False] = min(every[False], SLOWEST)

        def factor(job: Waiting) -> float:
            rule = job.rule
            if rule not in taken:
                return every[bool(self._arithmetic(job))]
            one = foreseen[rule] / count[rule]
            return (taken[rule] + one * every[rule in computing] / 4) / (foreseen[rule] + one / 4)

        return {job: self.predicted(job) * factor(job) for job in set(jobs)}


def _mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """A mean weighed by the roots of `weights`, so that one rule of long jobs does not speak for all; 0 of none."""
    sizes = {name: math.sqrt(weights[name]) for name in values}
    return sum(value * sizes[name] for name, value in values.items()) / sum(sizes.values()) if values else 0.0

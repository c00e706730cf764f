"""How long jobs take together, given which jobs wait for others and how many run at a time.

Nothing here knows what jobs do; `lamina_workflow.runtime.progress` estimates how long each takes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Capacity(NamedTuple):
    """What a machine offers, or what a job uses of it."""

    cores: int
    gpus: int = 0


class WaitingJob(NamedTuple):
    """A job that has not ended.

    seconds: Time until it ends: from its start, or from now if it is running.
    needs: The jobs that it waits for. Those that are not scheduled have ended.
    takes: What it uses while it runs.
    """

    seconds: float
    needs: frozenset[int] = frozenset()
    takes: Capacity = Capacity(1)
    is_running: bool = False


def schedule_jobs(jobs: Mapping[int, WaitingJob], machine: Capacity) -> float:
    """Seconds until all jobs have ended.

    Each job begins as soon as those that it needs have ended and the machine has room. Among jobs
    with a GPU, and among jobs without, longer ones begin first.
    """
    return _Schedule(jobs, machine).run()


class _Schedule:
    def __init__(self, jobs: Mapping[int, WaitingJob], machine: Capacity) -> None:
        self.jobs = jobs
        self.machine = machine
        self.free = machine
        self.missing = {number: set(job.needs & jobs.keys()) for number, job in jobs.items()}
        self.waiting_for: dict[int, list[int]] = {}
        for number, needs in self.missing.items():
            for need in needs:
                self.waiting_for.setdefault(need, []).append(number)
        # Jobs without a GPU, and jobs with one: whether they still wait, sort key, and number.
        self.ready: tuple[list[tuple[bool, float, int]], ...] = ([], [])
        self.running: list[tuple[float, int]] = []
        self._get_ready(number for number, needs in self.missing.items() if not needs)

    def run(self) -> float:
        now = 0.0
        self._begin_jobs(now)
        while self.running:
            now, ended = heapq.heappop(self.running)
            takes = self._takes(ended)
            self.free = Capacity(self.free.cores + takes.cores, self.free.gpus + takes.gpus)
            for number in self.waiting_for.get(ended, ()):
                self.missing[number].remove(ended)
            self._get_ready(
                number for number in self.waiting_for.get(ended, ()) if not self.missing[number]
            )
            self._begin_jobs(now)
        return now

    def _get_ready(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            job = self.jobs[number]
            queue = self.ready[job.takes.gpus > 0]
            heapq.heappush(queue, (not job.is_running, -job.seconds, number))

    def _begin_jobs(self, now: float) -> None:
        """Begin the jobs that the machine has room for."""
        for queue in self.ready:
            while queue:
                number = queue[0][-1]
                takes = self._takes(number)
                if takes.cores > self.free.cores or takes.gpus > self.free.gpus:
                    break
                heapq.heappop(queue)
                self.free = Capacity(self.free.cores - takes.cores, self.free.gpus - takes.gpus)
                heapq.heappush(self.running, (now + self.jobs[number].seconds, number))

    def _takes(self, number: int) -> Capacity:
        """What a job uses, but at most all that the machine has, as in Snakemake."""
        takes = self.jobs[number].takes
        return Capacity(min(takes.cores, self.machine.cores), min(takes.gpus, self.machine.gpus))

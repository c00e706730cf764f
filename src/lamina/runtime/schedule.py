"""How long a run takes whose jobs wait for each other and share the cores of a machine, played through in advance."""

import heapq
from collections.abc import Mapping
from typing import NamedTuple


class Left(NamedTuple):
    """What is left of a job: seconds, threads, its priority, the jobs before it, and whether it runs already."""

    seconds: float
    threads: int = 1
    priority: int = 0
    after: tuple[int, ...] = ()
    running: bool = False


def lasts(jobs: Mapping[int, Left], cores: int | None) -> float:
    """Seconds until all `jobs` have ended.

    A job begins once the jobs before it have ended and its threads are free, those of the highest priority first. One
    whose threads are not free holds up those behind it. Without `cores` there is room for any number. Jobs before one
    that are not in `jobs` have ended.
    """
    followers: dict[int, list[int]] = {}
    open_: dict[int, int] = {}
    for number, job in jobs.items():
        before = () if job.running else [one for one in job.after if one in jobs]
        open_[number] = len(before)
        for one in before:
            followers.setdefault(one, []).append(number)
    free = float("inf") if cores is None else float(cores)
    ready = [(not job.running, -job.priority, number) for number, job in jobs.items() if not open_[number]]
    heapq.heapify(ready)
    ends: list[tuple[float, int, float]] = []
    now = 0.0
    while ready or ends:
        while ready:
            _, _, number = ready[0]
            threads = min(float(jobs[number].threads), cores or float("inf"))
            if threads > free and not jobs[number].running:
                break
            heapq.heappop(ready)
            free -= threads
            heapq.heappush(ends, (now + jobs[number].seconds, number, threads))
        now, number, threads = heapq.heappop(ends)
        free += threads
        for follower in followers.get(number, ()):
            open_[follower] -= 1
            if not open_[follower]:
                heapq.heappush(ready, (True, -jobs[follower].priority, follower))
    return now

"""How long jobs take together, against schedules by hand and against trying every second."""

import random

import pytest

from lamina_workflow.runtime.schedule import Capacity, WaitingJob, schedule_jobs


def needing(seconds: float, *needs: int, cores: int = 1, gpus: int = 0) -> WaitingJob:
    return WaitingJob(seconds, frozenset(needs), Capacity(cores, gpus))


@pytest.mark.parametrize(
    ("jobs", "machine", "expected"),
    [
        ([], Capacity(1), 0),
        # One after the other on one core, or the longest on enough of them.
        ([needing(3), needing(4), needing(5)], Capacity(1), 12),
        ([needing(3), needing(4), needing(5)], Capacity(3), 5),
        # The longest begins: 5 beside 4 and 3.
        ([needing(3), needing(4), needing(5)], Capacity(2), 7),
        # A chain has no use for a second core.
        ([needing(3), needing(4, 0), needing(5, 1)], Capacity(2), 12),
        # Whoever is needed by nobody here has ended.
        ([needing(3, 17)], Capacity(1), 3),
        # A job that takes all cores waits for both of the others, and takes no more than there are.
        ([needing(3, cores=8), needing(4), needing(5)], Capacity(2), 8),
        # One device: two jobs that compute take turns, and others run beside them.
        ([needing(6, gpus=1), needing(6, gpus=1), needing(11)], Capacity(8, 1), 12),
        # Without a device, jobs that would take one take cores alone.
        ([needing(6, gpus=1), needing(6, gpus=1)], Capacity(2), 6),
    ],
)
def test_schedules_by_hand(jobs: list[WaitingJob], machine: Capacity, expected: float) -> None:
    assert schedule_jobs(dict(enumerate(jobs)), machine) == expected


def test_what_runs_goes_on_before_a_longer_job() -> None:
    running = WaitingJob(2.0, is_running=True)
    assert schedule_jobs({0: needing(5, 1), 1: running, 2: needing(4)}, Capacity(1)) == 11
    assert schedule_jobs({0: needing(9, 1), 1: running, 2: needing(4)}, Capacity(1)) == 15


def schedule_by_seconds(jobs: dict[int, WaitingJob], n_cores: int) -> int:
    """Seconds of jobs of whole seconds and one core each, tried second by second."""
    left = {number: job.seconds for number, job in jobs.items()}
    running: list[int] = []
    second = 0
    while left:
        for number in sorted(left, key=lambda number: (-jobs[number].seconds, number)):
            is_ready = number not in running and not jobs[number].needs & left.keys()
            if is_ready and len(running) < n_cores:
                running.append(number)
        for number in list(running):
            left[number] -= 1
            if not left[number]:
                running.remove(number)
                del left[number]
        second += 1
    return second


@pytest.mark.parametrize("seed", range(20))
def test_schedules_of_random_graphs(seed: int) -> None:
    generator = random.Random(seed)
    jobs: dict[int, WaitingJob] = {}
    for number in range(30):
        needs = generator.sample(range(number), min(number, generator.randrange(3)))
        jobs[number] = needing(generator.randint(1, 9), *needs)
    n_cores = generator.randint(1, 4)
    assert schedule_jobs(jobs, Capacity(n_cores)) == schedule_by_seconds(jobs, n_cores)

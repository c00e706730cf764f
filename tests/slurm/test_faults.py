"""After faults of a cluster, a run has the results of an undisturbed one."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.study import wait_until
from tests.slurm.cluster import SHORT_WAITS, Clone
from tests.slurm.tables import differences

SWEEP = "sweeps/reference/recall/base/removal/layer/removed=0.parquet"
BLOCKS = "results/sweeps/reference/recall/base/removal/layer/removed=0"
# The first job that is started does something.
FIRST_JOB = """
if __name__ == "__main__":
    try:
        os.close(os.open("faults/first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        {fault}
"""
KILL_ITSELF = "os.kill(os.getpid(), signal.SIGKILL)"
# Between the memory of the first and of the second attempt, with the interpreter and libraries.
FILL_MEMORY = "memory_filler = b'x' * 3_300_000_000; time.sleep(60)"
# The first two jobs wait while the file `hold` is there, so that a fault finds them at work.
HOLD_JOBS = """
if __name__ == "__main__":
    is_held = len(os.listdir("faults")) < 3
    open(f"faults/at-work-{os.environ['SLURM_JOB_ID']}", "w").close()
    while is_held and os.path.exists("faults/hold"):
        time.sleep(0.2)
"""
# Jobs save after each small batch and say where they begin. The first one that saves its second
# batch hangs.
HANG_AFTER_TWO_BATCHES = """
if __name__ == "__main__":
    from lamina.engine import memory
    from lamina.store import unfinished

    memory.choose_token_budget = lambda *arguments: 512
    unfinished.SECONDS = 0.0
    save = unfinished.Progress.save
    load = unfinished.Progress.load

    def save_and_hang(self, tensors, facts):
        save(self, tensors, facts)
        if facts["batches"] == 2:
            try:
                os.close(os.open("faults/first", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            time.sleep(600)

    def load_and_tell(self):
        state = load(self)
        n_batches = state[1]["batches"] if state else 0
        with open(f"faults/begins-{os.environ['SLURM_JOB_ID']}", "w") as file:
            file.write(str(n_batches))
        return state

    unfinished.Progress.save = save_and_hang
    unfinished.Progress.load = load_and_tell
"""


@pytest.fixture
def clone(copy_clone: Callable[[], Clone]) -> Clone:
    return copy_clone()


def assert_undisturbed(clone: Clone, undisturbed_results: Path) -> None:
    """Results are those of the undisturbed run, and no half file is left."""
    results = clone.folder / "results"
    for file in (SWEEP, "tables/relevance.parquet"):
        assert differences(results / file, undisturbed_results / file) == []
    assert not list(results.rglob("*.tmp"))


def finish(clone: Clone, *arguments: str) -> None:
    assert clone.run("relevance", *arguments) == 0, clone.read_logs()[-8000:]


def count_states(clone: Clone) -> Counter[str]:
    """How many jobs of the sweep ended, or are, in each state."""
    return Counter(job.state for job in clone.list_sweeps())


@pytest.mark.slow
def test_a_killed_job_is_tried_again(clone: Clone, undisturbed_results: Path) -> None:
    clone.inject("sweep_units.py", FIRST_JOB.format(fault=KILL_ITSELF))

    finish(clone)

    assert count_states(clone) == {"COMPLETED": 2, "FAILED": 1}
    assert_undisturbed(clone, undisturbed_results)


@pytest.mark.slow
def test_a_job_out_of_memory_gets_more(clone: Clone, undisturbed_results: Path) -> None:
    clone.inject("sweep_units.py", FIRST_JOB.format(fault=FILL_MEMORY))

    finish(clone)

    jobs = clone.list_sweeps()
    [killed] = [job for job in jobs if job.state != "COMPLETED"]
    first_megabytes = int(killed.memory.removesuffix("M"))
    completed_memory = {job.memory for job in jobs if job.state == "COMPLETED"}
    assert len(jobs) == 3
    assert completed_memory == {f"{first_megabytes}M", f"{2 * first_megabytes}M"}
    assert_undisturbed(clone, undisturbed_results)


@pytest.mark.slow
def test_a_job_out_of_time_is_continued(clone: Clone, undisturbed_results: Path) -> None:
    """The job that ran out of time had saved two batches: the next one begins with the third."""
    clone.inject("sweep_units.py", HANG_AFTER_TWO_BATCHES)

    finish(clone, "--set-resources", "sweep_units:runtime=attempt")

    first_batches = [int(file.read_text()) for file in (clone.folder / "faults").glob("begins-*")]
    assert count_states(clone) == {"COMPLETED": 2, "TIMEOUT": 1}
    assert sorted(first_batches) == [0, 0, 2]
    assert not list(clone.folder.rglob("*.unfinished"))
    assert_undisturbed(clone, undisturbed_results)


@pytest.fixture
def held_driver(clone: Clone) -> subprocess.Popen[str]:
    """A driver whose two jobs are at work and stay so until `release_jobs`."""
    clone.inject("sweep_units.py", HOLD_JOBS)
    (clone.folder / "faults/hold").touch()
    driver = clone.start_driver("relevance")
    wait_until(lambda: len(list((clone.folder / "faults").glob("at-work-*"))) == 2)
    return driver


def release_jobs(clone: Clone) -> None:
    (clone.folder / "faults/hold").unlink()


@pytest.mark.slow
def test_a_job_cancelled_from_outside_is_tried_again(
    clone: Clone, held_driver: subprocess.Popen[str], undisturbed_results: Path
) -> None:
    subprocess.run(["scancel", clone.list_sweeps()[0].id], check=True)
    release_jobs(clone)

    assert held_driver.wait(timeout=300) == 0, clone.read_logs()[-8000:]
    assert count_states(clone) == {"CANCELLED": 1, "COMPLETED": 2}
    assert_undisturbed(clone, undisturbed_results)


def resume(clone: Clone) -> str:
    """Run `make resume-slurm` to its end; what it printed."""
    process = clone.make("resume-slurm", "ARGUMENTS=relevance " + " ".join(SHORT_WAITS))
    assert process.returncode == 0, process.stdout[-6000:] + clone.read_logs()[-6000:]
    return process.stdout


def assert_one_writer_at_a_time(clone: Clone) -> None:
    """Of jobs that write the same file, each ended before the next began."""
    jobs = clone.list_sweeps()
    for comment in {job.comment for job in jobs}:
        writers = [job for job in jobs if job.comment == comment]
        for previous, following in zip(writers, writers[1:], strict=False):
            assert previous.end <= following.start


@pytest.mark.slow
def test_after_a_killed_driver_resume_cancels_its_jobs_and_runs_them_again(
    clone: Clone, held_driver: subprocess.Popen[str], undisturbed_results: Path
) -> None:
    held_driver.kill()
    held_driver.wait()
    orphans = {job.id for job in clone.list_sweeps()}
    assert count_states(clone) == {"RUNNING": 2}

    printed = resume(clone)

    states = {job.id: job.state for job in clone.list_sweeps()}
    for orphan in orphans:
        assert f"cancelled job {orphan}" in printed
        assert states.pop(orphan) == "CANCELLED"
    assert set(states.values()) == {"COMPLETED"}
    assert_one_writer_at_a_time(clone)
    assert_undisturbed(clone, undisturbed_results)


@pytest.mark.slow
def test_a_terminated_driver_waits_for_its_jobs(
    clone: Clone, held_driver: subprocess.Popen[str], undisturbed_results: Path
) -> None:
    held_driver.terminate()
    release_jobs(clone)
    held_driver.wait(timeout=300)

    assert count_states(clone) == {"COMPLETED": 2}

    resume(clone)

    assert len(clone.list_sweeps()) == 2, "what was finished is not done again"
    assert_undisturbed(clone, undisturbed_results)


@pytest.fixture
def small_disk(clone: Clone) -> Iterator[Path]:
    """A disk of 64 kB where the sweep's blocks go."""
    folder = clone.folder / BLOCKS
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    # Snakemake removes folders that it leaves empty, and cannot remove a disk.
    (folder / "kept").touch()
    yield folder
    subprocess.run(["umount", folder], check=False, capture_output=True)


def fill_disk(file: Path) -> None:
    with pytest.raises(OSError, match="No space left"), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_file(
    clone: Clone, small_disk: Path, undisturbed_results: Path
) -> None:
    fill_disk(small_disk / "filler")

    assert clone.run("relevance", "--retries", "0") != 0

    log = (clone.folder / "driver.log").read_text()
    failure = log.split("The first failure, in rule ")[-1]
    assert failure.startswith("sweep_units:")
    assert "No space left on device" in failure
    assert {file.name for file in small_disk.iterdir()} == {"filler", "kept"}

    (small_disk / "filler").unlink()
    finish(clone)

    assert_undisturbed(clone, undisturbed_results)

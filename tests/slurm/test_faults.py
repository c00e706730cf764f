"""What clusters do to jobs and drivers, and that a run comes out of it with the results of an undisturbed one."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.study import wait_until
from tests.slurm.cluster import QUICK, Clone, SlurmJob
from tests.slurm.tables import differences

SWEEP = "sweeps/reference/recall/base/removal/layer/removed=0.parquet"
BLOCKS = "results/sweeps/reference/recall/base/removal/layer/removed=0"
# The first job to come here does something; what it says is the name of the file it leaves.
FIRST = """
if __name__ == "__main__":
    try:
        os.close(os.open("faults/first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        {deed}
"""
# The first two jobs wait while the file is there, so that a fault finds them at work.
HELD = """
if __name__ == "__main__":
    first = len(os.listdir("faults")) < 3
    open(f"faults/at-work-{os.environ['SLURM_JOB_ID']}", "w").close()
    while first and os.path.exists("faults/hold"):
        time.sleep(0.2)
"""
# Jobs save after each small batch. The first one to save its second batch does no more; all say where they begin.
STUCK = """
if __name__ == "__main__":
    from lamina.engine import memory as room
    from lamina.store import unfinished as resume
    room.tokens = lambda *_: 512
    resume.SECONDS = 0.0
    save, load = resume.Progress.save, resume.Progress.load

    def saving(self, tensors, facts):
        save(self, tensors, facts)
        try:
            os.close(os.open("faults/first", os.O_CREAT | os.O_EXCL)) if facts["batches"] == 2 else None
        except FileExistsError:
            return
        time.sleep(600 if facts["batches"] == 2 else 0)

    def loading(self):
        state = load(self)
        open(f"faults/begins-{os.environ['SLURM_JOB_ID']}", "w").write(str(state[1]["batches"] if state else 0))
        return state

    resume.Progress.save, resume.Progress.load = saving, loading
"""


def check(made: Clone, undisturbed: Path) -> None:
    """Results are those of the undisturbed run, and no half file is left."""
    for path in (SWEEP, "tables/relevance.parquet"):
        assert differences(made.folder / "results" / path, undisturbed / path) == []
    assert not list((made.folder / "results").rglob("*.tmp"))


def sweeps(made: Clone) -> list[SlurmJob]:
    return [job for job in made.jobs() if "sweep_units" in job.what]


def finish(made: Clone) -> None:
    assert made.run("relevance") == 0, made.log()[-8000:]


@pytest.mark.slow
def test_a_killed_job_is_tried_again(fresh: Callable[[], Clone], undisturbed: Path) -> None:
    made = fresh()
    made.inject("sweep_units.py", FIRST.format(deed="os.kill(os.getpid(), signal.SIGKILL)"))
    finish(made)
    assert sorted(job.state for job in sweeps(made)) == ["COMPLETED", "COMPLETED", "FAILED"]
    check(made, undisturbed)


@pytest.mark.slow
def test_a_job_out_of_memory_gets_more(fresh: Callable[[], Clone], undisturbed: Path) -> None:
    made = fresh()
    # Between the memory of the first and of the second attempt, with the interpreter and its libraries.
    made.inject(
        "sweep_units.py", FIRST.format(deed="filled = b'x' * 3_300_000_000; time.sleep(60)")
    )
    finish(made)
    killed = [job for job in sweeps(made) if job.state != "COMPLETED"]
    assert len(killed) == 1
    first = int(killed[0].memory.removesuffix("M"))
    assert sorted(job.memory for job in sweeps(made) if job.state == "COMPLETED") == [
        f"{first}M",
        f"{2 * first}M",
    ]
    check(made, undisturbed)


@pytest.mark.slow
def test_a_job_out_of_time_is_given_what_is_left(
    fresh: Callable[[], Clone], undisturbed: Path
) -> None:
    """The job that ran out of time had saved two batches: the next one begins with the third."""
    made = fresh()
    made.inject("sweep_units.py", STUCK)
    assert made.run("relevance", "--set-resources", "sweep_units:runtime=attempt") == 0, made.log()[
        -8000:
    ]
    assert sorted(job.state for job in sweeps(made)) == ["COMPLETED", "COMPLETED", "TIMEOUT"]
    begun = {file.name: int(file.read_text()) for file in (made.folder / "faults").glob("begins-*")}
    assert sorted(begun.values()) == [0, 0, 2], begun
    assert not list(made.folder.rglob("*.unfinished"))
    check(made, undisturbed)


def held(made: Clone) -> subprocess.Popen[str]:
    """A driver whose two jobs are at work and stay so until `release`."""
    made.inject("sweep_units.py", HELD)
    (made.folder / "faults/hold").touch()
    driver = made.driver("relevance")
    wait_until(lambda: len(list((made.folder / "faults").glob("at-work-*"))) == 2)
    return driver


def release(made: Clone) -> None:
    (made.folder / "faults/hold").unlink()


@pytest.mark.slow
def test_a_job_cancelled_from_outside_is_tried_again(
    fresh: Callable[[], Clone], undisturbed: Path
) -> None:
    made = fresh()
    driver = held(made)
    subprocess.run(["scancel", sweeps(made)[0].id], check=True)
    release(made)
    assert driver.wait(timeout=300) == 0, made.log()[-8000:]
    assert sorted(job.state for job in sweeps(made)) == ["CANCELLED", "COMPLETED", "COMPLETED"]
    check(made, undisturbed)


def resume(made: Clone) -> str:
    done = made.make("resume-slurm", "ARGUMENTS=relevance " + " ".join(QUICK))
    assert done.returncode == 0, done.stdout[-6000:] + made.log()[-6000:]
    return done.stdout


def never_two_writers(made: Clone) -> None:
    """Of jobs that write the same file, each ended before the next began."""
    for what in {job.what for job in sweeps(made)}:
        writers = [job for job in sweeps(made) if job.what == what]
        for before, after in zip(writers, writers[1:], strict=False):
            assert before.end <= after.start


def test_after_a_killed_driver_resume_ends_its_jobs_and_goes_on(
    fresh: Callable[[], Clone], undisturbed: Path
) -> None:
    made = fresh()
    driver = held(made)
    driver.kill()
    driver.wait()
    lost = {job.id for job in sweeps(made)}
    assert {job.state for job in sweeps(made)} == {"RUNNING"}
    said = resume(made)
    assert all(f"cancelled job {job}" in said for job in lost)
    assert {job.state for job in sweeps(made) if job.id in lost} == {"CANCELLED"}
    assert {job.state for job in sweeps(made) if job.id not in lost} == {"COMPLETED"}
    never_two_writers(made)
    check(made, undisturbed)


@pytest.mark.slow
def test_a_terminated_driver_waits_for_its_jobs(
    fresh: Callable[[], Clone], undisturbed: Path
) -> None:
    made = fresh()
    driver = held(made)
    driver.terminate()
    release(made)
    driver.wait(timeout=300)
    assert {job.state for job in sweeps(made)} == {"COMPLETED"}
    resume(made)
    assert len(sweeps(made)) == 2, "what was finished is not done again"
    check(made, undisturbed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB where the sweep's blocks go."""
    folder = tmp_path / "clone" / BLOCKS
    yield folder
    subprocess.run(["umount", folder], check=False, capture_output=True)


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_file(
    fresh: Callable[[], Clone], undisturbed: Path, small_disk: Path
) -> None:
    made = fresh()
    small_disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small_disk], check=True)
    # Snakemake removes folders that it leaves empty, and cannot remove a disk.
    (small_disk / "kept").touch()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert made.run("relevance", "--retries", "0") != 0
    last = (made.folder / "driver.log").read_text().split("The first failure, in rule ")[-1]
    assert last.startswith("sweep_units:") and "No space left on device" in last
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "kept"]
    filler.unlink()
    finish(made)
    check(made, undisturbed)

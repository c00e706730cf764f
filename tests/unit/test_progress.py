"""The lines of a run: how far it is, what it does, how long it takes, and every failure."""

import io
import json
import logging
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.runtime.expected import Expected, Waiting
from lamina.runtime.progress import LogHandler, Progress, Running
from lamina.runtime.schedule import Left, lasts
from lamina.runtime.timeleft import spoken


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def handler(stream: io.StringIO, **told: Any) -> LogHandler:
    common = dict(stdout=False, quiet=set(), debug_dag=False, verbose=False, dryrun=False, printshellcmds=False)
    made = LogHandler(SimpleNamespace(**common | {"show_failed_logs": True} | told), None)  # type: ignore[arg-type]
    made.stream = stream
    return made


def record(message: str | None, now: float, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "levelno": level, "levelname": logging.getLevelName(level), **extra})
    made.created = now
    return made


def feed(made: LogHandler, jobs: int = 20, failing: int | None = None) -> None:
    """A run of `jobs` jobs, one after the other, each of 10 s."""

    def tell(message: str | None, now: float, level: int = logging.INFO, **extra: Any) -> None:
        said = record(message, now, level, **extra)
        if made.filter(said):
            made.handle(said)

    tell("Building DAG of jobs...", 0)
    tell("Job stats:\n...", 0, event=LogEvent.RUN_INFO, stats={"sweep_units": jobs - 1, "all": 1, "total": jobs})
    for job in range(jobs):
        rule = "sweep_units" if job < jobs - 1 else "all"
        tell("Select jobs to execute...", 10 * job)
        tell("Execute 1 jobs...", 10 * job, event=LogEvent.JOB_STARTED, jobs=[job])
        tell(" Rule: x", 10 * job, event=LogEvent.JOB_INFO, jobid=job, rule_name=rule)
        if job == failing:
            nothing: dict[str, Any] = dict(input=[], output=[], log=[], conda_env=None, shellcmd="false", aux={})
            tell(
                None,
                10 * job + 5,
                logging.ERROR,
                event=LogEvent.JOB_ERROR,
                jobid=job,
                rule_name=rule,
                indent=False,
                rule_msg=None,
                **nothing,
            )
        tell(f"Finished jobid: {job}", 10 * job + 10, event=LogEvent.JOB_FINISHED, job_id=job)
        tell(None, 10 * job + 10, event=LogEvent.PROGRESS, done=job + 1, total=jobs)
        tell("Removing temporary output results/x.parquet.", 10 * job + 10)
    tell("Complete log(s): /x.log", 10 * jobs)
    made.close()


def test_a_pipe_gets_a_line_for_each_tenth_and_no_control_codes() -> None:
    stream = io.StringIO()
    feed(handler(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "0 of 20 jobs (0 %)" and lines[-1] == "Complete log(s): /x.log"
    assert [line.split(" of")[0] for line in lines[1:-1]] == [str(done) for done in range(2, 21, 2)]
    assert lines[-2] == "20 of 20 jobs (100 %), all 1 of 1"
    assert lines[5].startswith("10 of 20 jobs (50 %), sweep_units 10 of 19, ")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x1b]", stream.getvalue())
    assert "temporary" not in stream.getvalue() and "Select" not in stream.getvalue()


def test_a_long_run_says_something_every_minute() -> None:
    stream = io.StringIO()
    feed(handler(stream), jobs=1000)
    assert 1000 / 6 - 2 <= len(stream.getvalue().splitlines()) <= 1000 / 6 + 12


def test_long_jobs_tell_how_far_they_are_and_when_the_run_ends(tmp_path: Path) -> None:
    """Two jobs of 1,000 s each, of which nothing has ended; a third waits for its turn."""
    found = Progress()
    found.plan({"sweep_units": 3, "total": 3}, 0, waiting({"sweep_units": 3}))
    for job, text in enumerate(("loading\n10 %, about 15 min left\n38 %, about 10 min left\n", "no share yet\n")):
        log = tmp_path / f"{job}.log"
        log.write_text(text)
        found.start(job, "sweep_units", 0, log)
    assert found.line(380) == "0 of 3 jobs (0 %), sweep_units 0 of 3 (running: 38 %), about 18 min left"
    (tmp_path / "0.log").write_text("40 %, about 10 min left\n")
    (tmp_path / "1.log").write_text("61 %, about 4 min left\n")
    assert "(running: 38 %)" in found.line(390)  # logs are looked at twice a minute
    # 600 s and 240 s of those under way by their logs, and the mean of 1,010 s and 650 s of the one that waits.
    assert found.left(410) == (pytest.approx((600 + 240 + 830) / 2, rel=0.01), True)
    assert "(running: 40 %, 61 %)" in found.line(410)
    found.finish(0, 410)
    assert "(running: 61 %)" in found.line(410)


def test_a_run_of_long_jobs_says_something_while_none_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.runtime.progress._SECONDS", 0.05)
    stream = io.StringIO()
    made = handler(stream)
    begun = time.time()
    made.handle(record("", begun, event=LogEvent.RUN_INFO, stats={"sweep_units": 2, "total": 2}))
    made.handle(record("", begun, event=LogEvent.JOB_INFO, jobid=1, rule_name="sweep_units"))
    time.sleep(0.5)
    made.close()
    said = stream.getvalue().splitlines()
    assert len(said) >= 3 and said[-1].startswith("0 of 2 jobs (0 %), sweep_units 0 of 2")
    time.sleep(0.2)
    assert stream.getvalue().splitlines() == said


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    stream = Terminal()
    feed(handler(stream))
    assert stream.getvalue().count("\n") == 2  # the note about the log, and the end
    assert stream.getvalue().rstrip().endswith("20 of 20 jobs (100 %), all 1 of 1")
    shown = stream.getvalue().split("\r")
    assert any(line.startswith("9 of 20 jobs (45 %), sweep_units 9 of 19, ") for line in shown)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_failures_and_warnings_are_shown_as_snakemake_words_them(stream: io.StringIO) -> None:
    made = handler(stream)
    feed(made, failing=3)
    made.handle(record("Trying to restart job 3.", 60))
    made.handle(record("something is odd", 60, logging.WARNING))
    assert "Error in rule sweep_units:" in stream.getvalue() and "jobid: 3" in stream.getvalue()
    assert "Trying to restart job 3." in stream.getvalue() and "something is odd" in stream.getvalue()


def test_a_dry_run_is_shown_whole() -> None:
    stream = io.StringIO()
    handler(stream, dryrun=True).handle(record("Job stats:\n", 0, event=LogEvent.RUN_INFO, stats={"total": 1}))
    assert stream.getvalue() == "Job stats:\n\n"


def waiting(rules: dict[str, int], threads: int = 1) -> dict[int, Waiting]:
    """So many jobs of each rule, numbered; job n writes the file n."""
    jobs = [rule for rule, count in rules.items() for _ in range(count)]
    return {number: Waiting(rule, (str(number),), threads) for number, rule in enumerate(jobs)}


def progress_of(rules: dict[str, int], cost: Path, **jobs: Any) -> Progress:
    """A run of so many jobs of each rule that begins at 0."""
    progress = Progress(expected=Expected(cost))
    progress.plan(rules | {"total": sum(rules.values())}, 0, waiting(rules), **jobs)
    return progress


def test_jobs_that_are_left_take_what_their_rules_jobs_took_as_many_abreast_as_before(tmp_path: Path) -> None:
    """On a cluster, two at a time: four short jobs of 10 s are done, one of 100 s; left are 2 and 3, one of them begun.

    Nothing is counted, so that all were expected to take as long. All together took 10 / 1 and 100 / 1 times that, by a
    mean whose weights are the roots of 4 and 1; it counts as a quarter of a job beside each rule's own.
    """
    progress = progress_of({"short": 6, "long": 4}, tmp_path / "none")
    assert progress.left(5) is None
    for job, (rule, begin, end) in {
        6: ("long", 0, 100),
        0: ("short", 0, 10),
        1: ("short", 10, 20),
        2: ("short", 20, 30),
        3: ("short", 30, 40),
    }.items():
        progress.start(job, rule, begin)
        progress.finish(job, end)
    progress.start(7, "long", 40)
    left, known = progress.left(100) or (0.0, False)
    every = 10 ** (2 / 3) * 100 ** (1 / 3)
    short, long = (40 + every / 4) / 4.25, (100 + every / 4) / 1.25
    abreast = (100 + 40 + 60) / 100
    assert known and left == pytest.approx((2 * short + 2 * long + (long - 60)) / abreast)


def test_jobs_take_as_long_as_their_counted_arithmetic_says(tmp_path: Path) -> None:
    """Two sweeps of 1e12 operations took 100 s each: those of half of it and of ten times it take in proportion."""
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"width": 64, "jobs": {"0": 1e12, "1": 1e12, "2": 0.5e12, "3": 1e13}}))
    progress = progress_of({"sweep_units": 4}, cost, cores=1)
    for job in (0, 1):
        progress.start(job, "sweep_units", 100 * job)
        progress.finish(job, 100 * job + 100)
    left, known = progress.left(200) or (0.0, False)
    # Each job also takes a second that does not grow with its arithmetic, and one core is kept almost busy.
    assert known and left == pytest.approx(1050, rel=0.03)


def test_jobs_that_only_start_slowly_do_not_say_that_a_sweep_is_slow(tmp_path: Path) -> None:
    """Five gatherings took ten times what is usual: a sweep that was not timed is still taken at its arithmetic."""
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"width": 64, "jobs": {"5": 2e13}}))
    progress = progress_of({"gather_table": 5, "sweep_units": 1}, cost, cores=1)
    for job in range(5):
        progress.start(job, "gather_table", 7 * job)
        progress.finish(job, 7 * job + 7)
    left, _ = progress.left(35) or (0.0, False)
    # One core is kept almost busy.
    assert left == pytest.approx(1 + 2e13 / 2e10, rel=0.1)


def test_one_long_job_that_was_not_counted_makes_no_other_rule_long(tmp_path: Path) -> None:
    """A fit that reads another job's sums is quick; one that had none made a pass of its own, which nobody counted."""
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"width": 64, "jobs": {"99": 1e12}}))
    progress = progress_of({"fit_patch": 1, "plot_figure": 20}, cost, cores=1)
    progress.start(0, "fit_patch", 0)
    progress.finish(0, 150)
    left, _ = progress.left(150) or (0.0, False)
    assert left <= 20 * 4 * 1.7 / 0.9


def test_a_running_job_that_says_what_it_has_left_is_believed(tmp_path: Path) -> None:
    """Also where an earlier process did most of it, and no job of its rule has ended."""
    log = tmp_path / "log"
    log.write_text("host=here\n61 %, about 3 min left\n62 %, about 2 min left\n")
    progress = progress_of({"sweep_units": 2}, tmp_path / "none", cores=1)
    progress.start(0, "sweep_units", 0, log)
    written = log.stat().st_mtime
    progress.begun, progress.running[0] = written - 90, Running(Waiting("sweep_units"), written - 90, log)
    left, _ = progress.left(written + 20) or (0.0, True)
    # What is left of it, and as long as it takes in all for the other.
    assert left == pytest.approx((100 + 210) / ((110 + 54) / 170), rel=0.01)


def test_no_time_left_is_shorter_than_the_longest_job_alone(tmp_path: Path) -> None:
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"width": 64, "jobs": {"0": 1e12, "1": 1e12}}))
    progress = progress_of({"sweep_units": 2}, cost, cores=8)
    progress.start(0, "sweep_units", 0)
    progress.finish(0, 100)
    assert (progress.left(100) or (0.0, True))[0] == pytest.approx(100)


def test_jobs_that_wait_for_each_other_are_played_through() -> None:
    """Two cores: a chain of 30 s, beside it four jobs of 10 s. Begun first, the chain hides them; last, it does not."""
    chain = {1: Left(10, 1, 5), 2: Left(10, 1, 5, (1,)), 3: Left(10, 1, 5, (2, 99))}
    beside = {number: Left(10) for number in range(4, 8)}
    assert lasts(chain | beside, 2) == 40
    late = {number: job._replace(priority=-5) for number, job in chain.items()}
    assert lasts(late | beside, 2) == 50
    # A cluster has room for all; a job that runs has begun, whatever it waited for; one of all threads runs alone.
    assert lasts(chain | beside, None) == 30
    assert lasts({2: Left(4, 1, 0, (1,), True), 3: Left(10, 1, 0, (2,))}, 1) == 14
    assert lasts({1: Left(10, 8), 2: Left(5), 3: Left(5)}, 2) == 15
    assert lasts({}, 2) == 0


def test_the_line_knows_that_a_chain_cannot_be_shared(tmp_path: Path) -> None:
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"width": 64, "jobs": {str(number): 1e12 for number in range(4)}}))
    progress = progress_of({"sweep_units": 4}, cost, cores=2)
    progress.waiting = {number: replace(job, after=(number - 1,)) for number, job in progress.waiting.items()}
    progress.start(0, "sweep_units", 0)
    progress.finish(0, 100)
    assert (progress.left(100) or (0.0, True))[0] == pytest.approx(300, rel=0.03)


def test_a_kind_of_job_that_was_not_timed_yet_makes_it_at_least(tmp_path: Path) -> None:
    progress = progress_of({"short": 2, "heal_variant": 1}, tmp_path / "none")
    progress.start(0, "short", 0)
    progress.finish(0, 60)
    progress.done = 1
    assert "at least 2 min left" in progress.line(60)
    assert [spoken(seconds) for seconds in (0.2, 45, 600, 7200)] == ["1 s", "45 s", "10 min", "2.0 h"]

"""The lines of a run: how far it is, what it does, how long it takes, and every failure."""

import io
import logging
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.timeleft import spoken
from lamina.workflow.progress import LogHandler, Progress


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
    found.plan({"sweep_units": 3, "total": 3}, 0)
    for job, text in enumerate(("loading\n10 %, about 15 min left\n38 %, about 10 min left\n", "no share yet\n")):
        log = tmp_path / f"{job}.log"
        log.write_text(text)
        found.start(job, "sweep_units", 0, log)
    assert found.line(380) == "0 of 3 jobs (0 %), sweep_units 0 of 3 (running: 38 %), about 19 min left"
    (tmp_path / "0.log").write_text("40 %, about 10 min left\n")
    (tmp_path / "1.log").write_text("61 %, about 4 min left\n")
    assert "(running: 38 %)" in found.line(390)  # logs are looked at twice a minute
    # 615 s and 262 s of those under way, and 849 s, their mean, of the one that waits; two side by side.
    assert found.left(410) == (pytest.approx((615 + 410 * 0.39 / 0.61 + (1025 + 410 / 0.61) / 2) / 2), True)
    assert "(running: 40 %, 61 %)" in found.line(410)
    found.finish(0, 410)
    assert "(running: 61 %)" in found.line(410)


def test_a_run_of_long_jobs_says_something_while_none_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.workflow.progress._SECONDS", 0.05)
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


def test_the_time_left_counts_jobs_at_their_rules_mean_as_many_abreast_as_before() -> None:
    """Two at a time: four short jobs of 10 s are done, one of 100 s; left are 2 short and 3 long, one of them begun."""
    progress = Progress()
    progress.plan({"short": 6, "long": 4, "total": 10}, 0)
    assert progress.left(5) is None
    for job, (rule, begin, end) in enumerate(
        [("long", 0, 100), ("short", 0, 10), ("short", 10, 20), ("short", 20, 30), ("short", 30, 40)]
    ):
        progress.start(job, rule, begin)
        progress.finish(job, end)
    progress.start(9, "long", 40)
    left, known = progress.left(100) or (0.0, False)
    abreast = (100 + 40 + 60) / 100
    assert known and left == pytest.approx((2 * 10 + 2 * 100 + 40) / abreast)


def test_a_kind_of_job_that_was_not_timed_yet_makes_it_at_least() -> None:
    progress = Progress()
    progress.plan({"short": 2, "heal_variant": 1, "total": 3}, 0)
    progress.start(1, "short", 0)
    progress.finish(1, 60)
    progress.done = 1
    assert "at least 2 min left" in progress.line(60)
    assert [spoken(seconds) for seconds in (0.2, 45, 600, 7200)] == ["1 s", "45 s", "10 min", "2.0 h"]

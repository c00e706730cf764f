"""The lines of a run: how far it is, what it does, how long it takes, and every failure."""

import io
import json
import logging
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.runtime.progress import LogHandler, Progress
from lamina.store.timeleft import spoken


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def handler(stream: io.StringIO, **told: Any) -> LogHandler:
    common = dict(
        stdout=False,
        quiet=set(),
        debug_dag=False,
        verbose=False,
        dryrun=False,
        printshellcmds=False,
    )
    made = LogHandler(SimpleNamespace(**common | {"show_failed_logs": True} | told), None)  # type: ignore[arg-type]
    made.stream = stream
    return made


def record(
    message: str | None, now: float, level: int = logging.INFO, **extra: Any
) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"msg": message, "levelno": level, "levelname": logging.getLevelName(level), **extra}
    )
    made.created = now
    return made


def feed(made: LogHandler, jobs: int = 20, failing: int | None = None) -> None:
    """A run of `jobs` jobs, one after the other, each of 10 s."""

    def tell(message: str | None, now: float, level: int = logging.INFO, **extra: Any) -> None:
        said = record(message, now, level, **extra)
        if made.filter(said):
            made.handle(said)

    tell("Building DAG of jobs...", 0)
    tell(
        "Job stats:\n...",
        0,
        event=LogEvent.RUN_INFO,
        stats={"sweep_units": jobs - 1, "all": 1, "total": jobs},
    )
    for job in range(jobs):
        rule = "sweep_units" if job < jobs - 1 else "all"
        tell("Select jobs to execute...", 10 * job)
        tell("Execute 1 jobs...", 10 * job, event=LogEvent.JOB_STARTED, jobs=[job])
        tell(" Rule: x", 10 * job, event=LogEvent.JOB_INFO, jobid=job, rule_name=rule)
        if job == failing:
            told: dict[str, Any] = dict(
                jobid=job, rule_name=rule, output=["results/x.parquet"], shellcmd="false"
            )
            told |= dict(input=[], log=[], conda_env=None, aux={}, indent=False, rule_msg=None)
            tell(None, 10 * job + 5, logging.ERROR, event=LogEvent.JOB_ERROR, **told)
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
    assert lines[-2] == "20 of 20 jobs (100 %), all 1 of 1, 3 min"
    assert lines[5].startswith("10 of 20 jobs (50 %), sweep_units 10 of 19, ")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x1b]", stream.getvalue())
    assert "temporary" not in stream.getvalue() and "Select" not in stream.getvalue()


def test_a_long_run_says_something_every_minute() -> None:
    stream = io.StringIO()
    feed(handler(stream), jobs=1000)
    assert 1000 / 6 - 2 <= len(stream.getvalue().splitlines()) <= 1000 / 6 + 12


def test_time_left_is_the_work_that_is_left_at_the_pace_so_far(tmp_path: Path) -> None:
    """Two sweeps of 1e12 operations took 100 s each: those of half of it and of ten times it take in proportion."""
    cost = tmp_path / "cost.json"
    outputs = {job: (str(job),) for job in range(4)}
    found = Progress(Counter({"sweep_units": 4, "total": 4}), outputs, cost, begun=50)
    assert found.left(100) is None
    for job in (0, 1):
        found.start(job, "sweep_units")
        found.finish(job)
    found.done = 2
    assert found.left(250) == 200  # nothing is counted yet
    assert found.line(250) == "2 of 4 jobs (50 %), sweep_units 2 of 4, 3 min, about 3 min left"
    cost.write_text(json.dumps({"jobs": {"0": 1e12, "1": 1e12, "2": 0.5e12, "3": 1e13}}))
    assert found.left(250) == pytest.approx(1050, rel=0.02)
    cost.write_text("{")
    assert found.left(250) == 200


def test_a_progress_reads_no_cost_but_that_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/cost.json").write_text(json.dumps({"jobs": {"0": 1e15}}))
    monkeypatch.chdir(tmp_path)
    found = Progress(Counter(total=2), {0: ("0",), 1: ("1",)})
    found.start(1, "all")
    found.finish(1)
    assert found.left(10) == 10


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
    assert stream.getvalue().rstrip().endswith("20 of 20 jobs (100 %), all 1 of 1, 3 min")
    shown = stream.getvalue().split("\r")
    assert any(line.startswith("9 of 20 jobs (45 %), sweep_units 9 of 19, ") for line in shown)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_failed_job_is_named_once_and_warnings_are_shown(stream: io.StringIO) -> None:
    made = handler(stream)
    feed(made, failing=3)
    made.handle(
        record(
            "RuleException:\nCalledProcessError in file x, line 3:\nCommand 'set -e; …' …",
            60,
            logging.ERROR,
        )
    )
    made.handle(
        record("WorkflowError:\nAt least one job did not complete successfully.", 60, logging.ERROR)
    )
    made.handle(record("Trying to restart job 3.", 60))
    made.handle(record("something is odd", 60, logging.WARNING))
    said = stream.getvalue()
    assert said.count("sweep_units failed: results/x.parquet") == 1
    assert "Error in rule" not in said and "Command" not in said and "WorkflowError" not in said
    assert "Trying to restart job 3." in said and "something is odd" in said


def test_a_run_that_is_stopped_names_no_job_as_failed() -> None:
    stream = io.StringIO()
    made = handler(stream)
    made.handle(
        record(
            "Terminating processes on user request, this might take some time.", 1, logging.WARNING
        )
    )
    feed(made, failing=3)
    assert "failed" not in stream.getvalue() and "Stopping" in stream.getvalue()


def test_times_are_spoken_in_the_unit_of_a_person() -> None:
    assert [spoken(seconds) for seconds in (0.2, 45, 600, 7200)] == [
        "1 s",
        "45 s",
        "10 min",
        "2.0 h",
    ]

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
import torch
from snakemake_interface_logger_plugins.common import LogEvent

from lamina.models import workload
from lamina.models.materialise import materialise
from lamina.models.workload import Workload
from lamina_workflow.runtime.log_handler import LogHandler
from lamina_workflow.runtime.progress import JobRecord, RunProgress, format_seconds, spoken_range
from tests.given import tiny


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
    assert lines[-2] == "20 of 20 jobs (100 %), 3 min"
    assert lines[5].startswith("10 of 20 jobs (50 %), 2 min; ")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x1b]", stream.getvalue())
    assert "temporary" not in stream.getvalue() and "Select" not in stream.getvalue()


def test_a_long_run_says_something_every_minute() -> None:
    stream = io.StringIO()
    feed(handler(stream), jobs=1000)
    assert 1000 / 6 - 2 <= len(stream.getvalue().splitlines()) <= 1000 / 6 + 12


LAYER_TOKENS = 1e6  # that each forecast of these tests has for an operation of 1e12


def forecast(file: Path, **operations: float) -> Path:
    """A cost file with a forecast for the outputs of these names."""
    jobs = {
        name: {"layer_tokens": LAYER_TOKENS * flops / 1e12, "flops": flops}
        for name, flops in operations.items()
    }
    file.write_text(json.dumps({"jobs": jobs}))
    return file


def work(log: Path, layer_tokens: float, seconds: float, earlier: float = 0.0) -> None:
    """What a job of a model writes into its log, among other lines."""
    done = Workload()
    done.layer_tokens, done.earlier = layer_tokens, earlier
    with log.open("a") as file:
        handler = logging.StreamHandler(file)
        logger = logging.getLogger("lamina")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        done._started = time.monotonic() - seconds
        done.report()
        logger.removeHandler(handler)
        file.write("a warning of a library\n")


def progress(folder: Path, **operations: float) -> RunProgress:
    """A run of jobs of rule `search_plans` with these forecasts; `other` jobs compute nothing."""
    jobs = {
        number: JobRecord("search_plans" if flops else "other", (name,), folder / f"{name}.log")
        for number, (name, flops) in enumerate(operations.items())
    }
    computing = {name: flops for name, flops in operations.items() if flops}
    counts = Counter(job.rule for job in jobs.values()) + Counter(total=len(jobs))
    return RunProgress(counts, jobs, forecast(folder / "cost.json", **computing))


def test_what_a_running_job_has_done_counts(tmp_path: Path) -> None:
    """One search of an hour: it says how far it is, and so does the run, before any job has ended."""
    found = progress(tmp_path, search=1e12)
    found.start(0, "search_plans", 0.0)
    for minutes in (2, 6, 15, 30, 54):
        work(tmp_path / "search.log", LAYER_TOKENS * minutes / 60, 60 * minutes)
        assert found.seconds_left(60.0 * minutes) == pytest.approx(3600 - 60 * minutes, rel=0.01)
    assert found.line(3300.0).startswith("0 of 1 jobs (0 %), 55 min: search_plans 90 %; ")


def test_nothing_is_said_before_a_minute_was_measured(tmp_path: Path) -> None:
    found = progress(tmp_path, search=1e12)
    found.start(0, "search_plans", 0.0)
    assert found.seconds_left(600.0) is None  # it says nothing yet: it may be waiting for its model
    work(tmp_path / "search.log", LAYER_TOKENS / 100, 59)
    assert found.seconds_left(660.0) is None
    work(tmp_path / "search.log", LAYER_TOKENS / 60, 61)
    assert found.seconds_left(662.0) is not None


def test_work_is_forecast_at_the_pace_of_its_rule(tmp_path: Path) -> None:
    """One of 1e12 operations took 100 s, 5 of them before it computed. Three wait, of 1e12, 2e12, and none."""
    found = progress(tmp_path, one=1e12, two=1e12, three=2e12, four=0)
    found.start(0, "search_plans", 0.0)
    work(tmp_path / "one.log", LAYER_TOKENS, 95)
    found.finish(0, 100.0)
    assert found.seconds_left(100.0) == pytest.approx(100 + 195 + 1, rel=0.01)
    # Two at a time, of which the longer one decides.
    found.start(1, "search_plans", 100.0)
    found.start(2, "search_plans", 100.0)
    assert found.seconds_left(150.0) == pytest.approx(145, rel=0.02)
    # Another pace of the one that runs longest: it says itself how long it will take.
    work(tmp_path / "three.log", LAYER_TOKENS / 2, 45)
    # 135 s of it, 48 of the other one at the mean pace of both, 1; 200 s of jobs took 150.
    assert found.seconds_left(150.0) == pytest.approx((135 + 48 + 1) * 150 / 200, rel=0.02)


def test_without_a_forecast_the_jobs_of_a_rule_that_ended_speak_for_the_others(
    tmp_path: Path,
) -> None:
    names = ("first", "second", "search", "table")
    rules = ("sweep_units", "sweep_units", "search_plans", "gather_table")
    jobs = {
        number: JobRecord(rule, (name,), computes=rule != "gather_table")
        for number, (name, rule) in enumerate(zip(names, rules, strict=True))
    }
    run = RunProgress(Counter(rules) + Counter(total=4), jobs, tmp_path / "no cost.json")
    run.start(0, "sweep_units", 0.0)
    run.finish(0, 100.0)
    run.start(1, "sweep_units", 100.0)
    assert run.seconds_left(110.0) is None  # nothing is known of a search
    del jobs[2]
    assert run.seconds_left(110.0) == pytest.approx(90 + 1)


def test_what_a_killed_process_did_is_no_pace_of_this_one(tmp_path: Path) -> None:
    """Half was there. In 100 s a tenth was added: four tenths are left, 400 s."""
    found = progress(tmp_path, search=1e12)
    found.start(0, "search_plans", 0.0)
    work(tmp_path / "search.log", LAYER_TOKENS / 10, 100, earlier=LAYER_TOKENS / 2)
    assert found.seconds_left(100.0) == pytest.approx(400, rel=0.02)


def test_nothing_is_said_of_a_job_that_did_more_than_was_forecast(tmp_path: Path) -> None:
    found = progress(tmp_path, search=1e12)
    found.start(0, "search_plans", 0.0)
    work(tmp_path / "search.log", 1.7 * LAYER_TOKENS, 1000)
    assert found.seconds_left(1000.0) is None
    assert found.line(1000.0) == "0 of 1 jobs (0 %), 17 min: search_plans"


def test_a_line_names_what_runs_and_not_what_ended(tmp_path: Path) -> None:
    found = progress(tmp_path, search=1e12, first=0, second=0)
    found.start(1, "other", 0.0)
    found.start(0, "search_plans", 1.0)
    assert found.line(5.0) == "0 of 3 jobs (0 %), 5 s: other 0 of 2, search_plans"
    found.finish(1, 10.0)
    found.n_done = 1
    assert found.line(20.0) == "1 of 3 jobs (33 %), 20 s: search_plans"


@pytest.mark.parametrize(
    ("left", "past", "words"),
    [
        (30, 600, "less than 2 min"),
        (240, 600, "3 to 5 min"),
        (1200, 120, "10 to 30 min"),
        (1200, 6000, "15 to 25 min"),
        (3 * 3600, 3600, "2 to 4.5 h"),
        (30 * 3600, 3600, "20 to 45 h"),
    ],
)
def test_the_time_left_is_a_range_in_the_unit_of_a_person(
    left: float, past: float, words: str
) -> None:
    assert spoken_range(left, past) == words


def test_layers_count_what_runs_through_them(caplog: pytest.LogCaptureFixture) -> None:
    """Of five layers: a pass, one without a layer, a backward pass, and two tokens that are written."""
    model, done = tiny.model(), workload.done
    workload.count_work(model)
    tokens, cut = tiny.tokens(3, 12), materialise(model, {"units": ["2"]})
    before = done.layer_tokens
    with torch.no_grad():
        model(tokens)
        cut(tokens)
    assert done.layer_tokens - before == 36 * (5 + 4)
    model(tokens)
    assert done.layer_tokens - before == 36 * (5 + 4 + 3 * 5)
    model.generate(tokens, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert done.layer_tokens - before == 36 * (5 + 4 + 3 * 5 + 5) + 3 * 2 * 16 * 5


def test_a_run_of_long_jobs_says_something_while_none_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina_workflow.runtime.log_handler._SECONDS", 0.05)
    stream = io.StringIO()
    made = handler(stream)
    begun = time.time()
    made.handle(record("", begun, event=LogEvent.RUN_INFO, stats={"sweep_units": 2, "total": 2}))
    made.handle(record("", begun, event=LogEvent.JOB_INFO, jobid=1, rule_name="sweep_units"))
    time.sleep(0.5)
    made.close()
    said = stream.getvalue().splitlines()
    assert len(said) >= 3 and said[-1].startswith("0 of 2 jobs (0 %), 1 s: sweep_units 0 of 2")
    time.sleep(0.2)
    assert stream.getvalue().splitlines() == said


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    stream = Terminal()
    feed(handler(stream))
    assert stream.getvalue().count("\n") == 2  # the note about the log, and the end
    assert stream.getvalue().rstrip().endswith("20 of 20 jobs (100 %), 3 min")
    shown = stream.getvalue().split("\r")
    assert any(
        line.startswith("9 of 20 jobs (45 %), 2 min: sweep_units 9 of 19; ") for line in shown
    )


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
    assert [format_seconds(seconds) for seconds in (0.2, 45, 600, 7200)] == [
        "1 s",
        "45 s",
        "10 min",
        "2.0 h",
    ]

"""The lines of a run: how far it is, what it does, how long it takes, and every failure."""

import io
import json
import logging
import re
import subprocess
import sys
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
from lamina_workflow.runtime.progress import (
    Guess,
    JobRecord,
    Pace,
    RunProgress,
    WorkReport,
    format_seconds,
    spoken_range,
)
from lamina_workflow.runtime.schedule import Capacity
from tests.given import tiny


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_handler(stream: io.StringIO) -> LogHandler:
    """The handler of a run whose lines go into a stream."""
    settings = SimpleNamespace(
        stdout=False,
        quiet=set(),
        debug_dag=False,
        verbose=False,
        dryrun=False,
        printshellcmds=False,
        show_failed_logs=True,
    )
    handler = LogHandler(settings, None)  # type: ignore[arg-type]
    handler.stream = stream
    return handler


def send(
    handler: LogHandler,
    message: str | None,
    second: float,
    level: int = logging.INFO,
    **event: Any,
) -> None:
    """Send a message of Snakemake, at a second of the run, if the handler wants it."""
    level_name = logging.getLevelName(level)
    record = logging.makeLogRecord(
        {"msg": message, "levelno": level, "levelname": level_name, **event}
    )
    record.created = second
    if handler.filter(record):
        handler.handle(record)


def send_job(handler: LogHandler, job: int, rule: str, second: float, fails: bool) -> None:
    """The messages of a job of 10 s, which may fail in the middle."""
    end = second + 10
    send(handler, "Select jobs to execute...", second)
    send(handler, "Execute 1 jobs...", second, event=LogEvent.JOB_STARTED, jobs=[job])
    send(handler, " Rule: x", second, event=LogEvent.JOB_INFO, jobid=job, rule_name=rule, threads=1)
    if fails:
        send(
            handler,
            None,
            second + 5,
            logging.ERROR,
            event=LogEvent.JOB_ERROR,
            jobid=job,
            rule_name=rule,
            output=["results/x.parquet"],
            shellcmd="false",
            input=[],
            log=[],
            conda_env=None,
            aux={},
            indent=False,
            rule_msg=None,
        )
    send(handler, f"Finished jobid: {job}", end, event=LogEvent.JOB_FINISHED, job_id=job)


def send_run(handler: LogHandler, n_jobs: int = 20, failing_job: int | None = None) -> None:
    """The messages of a run of jobs of 10 s, one after the other."""
    stats = {"sweep_units": n_jobs - 1, "all": 1, "total": n_jobs}
    send(handler, "Building DAG of jobs...", 0)
    send(handler, "Job stats:\n...", 0, event=LogEvent.RUN_INFO, stats=stats)
    for job in range(n_jobs):
        rule = "sweep_units" if job < n_jobs - 1 else "all"
        end = 10 * (job + 1)
        send_job(handler, job, rule, 10 * job, fails=job == failing_job)
        send(handler, None, end, event=LogEvent.PROGRESS, done=job + 1, total=n_jobs)
        send(handler, "Removing temporary output results/x.parquet.", end)
    send(handler, "Complete log(s): /x.log", 10 * n_jobs)
    send(handler, "Elapsed time: 0:01:00", 10 * n_jobs)
    handler.close()


def test_a_pipe_gets_a_line_for_each_tenth_and_no_control_codes() -> None:
    stream = io.StringIO()
    send_run(open_handler(stream))

    output = stream.getvalue()
    first_line, *tenths = output.splitlines()
    assert first_line == "0 of 20 jobs"
    assert [line.split(" of")[0] for line in tenths] == [str(done) for done in range(2, 21, 2)]
    assert tenths[4] == "10 of 20 jobs, 2 min"  # nothing says how long the others take
    assert tenths[-1] == "20 of 20 jobs, 3 min"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x1b]", output)
    for own_words in ("temporary", "Select", "Complete log", "Elapsed"):
        assert own_words not in output


def test_a_long_run_writes_a_line_every_minute() -> None:
    stream = io.StringIO()
    send_run(open_handler(stream), n_jobs=1000)
    n_minutes = 1000 / 6
    assert n_minutes - 2 <= len(stream.getvalue().splitlines()) <= n_minutes + 12


LAYER_TOKENS = 1e6  # that each forecast of these tests has for 1e12 operations


def write_forecast(file: Path, operations: dict[str, float]) -> Path:
    """A cost file with a forecast for the outputs of these names."""
    jobs = {}
    for name, flops in operations.items():
        jobs[name] = {"layer_tokens": LAYER_TOKENS * flops / 1e12, "flops": flops}
    file.write_text(json.dumps({"jobs": jobs}))
    return file


def write_workload(
    log: Path, layer_tokens: float, seconds: float, earlier: float = 0.0, n_sets: int = 0
) -> None:
    """What a job that computes for so long writes into its log, among other lines.

    earlier: what a killed process had computed, whose work the job continues.
    n_sets: of 120, that it has measured; 0 if it measures none.
    """
    done = Workload()
    if n_sets:
        done.expect(120, "sets")
        done.advance(n_sets)
    done.layer_tokens = layer_tokens
    done.earlier = earlier
    done._started = time.monotonic() - seconds
    logger = logging.getLogger(workload.__name__)
    logger.setLevel(logging.DEBUG)
    with log.open("a") as file:
        handler = logging.StreamHandler(file)
        logger.addHandler(handler)
        done.report()
        logger.removeHandler(handler)
        file.write("a warning of a library\n")


def begin_run(folder: Path, **operations: float) -> RunProgress:
    """A run of jobs of rule `search_plans` with these forecasts; those of 0 are of rule `other`."""
    jobs = {}
    counts: Counter[str] = Counter()
    for number, (name, flops) in enumerate(operations.items()):
        rule = "search_plans" if flops else "other"
        jobs[number] = JobRecord(rule, (name,), folder / f"{name}.log")
        counts[rule] += 1
    counts["total"] = len(jobs)
    computing = {name: flops for name, flops in operations.items() if flops}
    cost = write_forecast(folder / "cost.json", computing)
    return RunProgress(counts, jobs, cost, Capacity(cores=2))


def seconds_left(run: RunProgress, now: float) -> float | None:
    guess = run.guess_left(now)
    return guess.seconds if guess else None


def test_what_a_running_job_has_done_counts(tmp_path: Path) -> None:
    """A search of an hour says how far it is, and so does its run, before any job has ended."""
    run = begin_run(tmp_path, search=1e12)
    run.start(0, "search_plans", 0.0)
    for minutes in (2, 6, 15, 30, 54):
        seconds = 60.0 * minutes
        write_workload(tmp_path / "search.log", LAYER_TOKENS * minutes / 60, seconds)
        assert seconds_left(run, seconds) == pytest.approx(3600 - seconds, rel=0.01)
    assert run.line(3300.0).startswith("0 of 1 jobs, 55 min (90 %): search_plans (90 %); ")


def test_no_time_is_forecast_before_a_minute_was_measured(tmp_path: Path) -> None:
    run = begin_run(tmp_path, search=1e12)
    run.start(0, "search_plans", 0.0)
    assert seconds_left(run, 600.0) is None  # the job may be waiting for its model
    write_workload(tmp_path / "search.log", LAYER_TOKENS / 100, 59)
    assert seconds_left(run, 660.0) is None
    write_workload(tmp_path / "search.log", LAYER_TOKENS / 60, 61)
    assert seconds_left(run, 662.0) is not None


def test_work_is_forecast_at_the_pace_of_its_rule(tmp_path: Path) -> None:
    """One of 1e12 operations took 100 s, of which it computed for 95 s.

    Three wait: of 1e12, of 2e12 and of no operations.
    """
    run = begin_run(tmp_path, one=1e12, two=1e12, three=2e12, four=0)
    run.start(0, "search_plans", 0.0)
    write_workload(tmp_path / "one.log", LAYER_TOKENS, 95)
    run.finish(0, 100.0)
    run.machine = Capacity(cores=1)
    assert seconds_left(run, 100.0) == pytest.approx(100 + 195 + 1, rel=0.01)

    # Two run at a time, of which the longer one decides.
    run.machine = Capacity(cores=2)
    run.start(1, "search_plans", 100.0)
    run.start(2, "search_plans", 100.0)
    assert seconds_left(run, 150.0) == pytest.approx(145, rel=0.02)

    # The longer one reports its own pace: it needs 45 s for half of its work.
    write_workload(tmp_path / "three.log", LAYER_TOKENS, 45)
    # At the mean pace of both, the other one needs 5 s to start and 70 s, of which 50 s are over.
    assert seconds_left(run, 150.0) == pytest.approx(45, rel=0.02)
    run.jobs[3].needs = frozenset({2})
    run.jobs[3].rule = "search_plans"
    run.jobs[3].flops = 1e12
    run.jobs[3].layer_tokens = LAYER_TOKENS
    assert seconds_left(run, 150.0) == pytest.approx(45 + 75, rel=0.02)


def test_a_rule_that_was_not_measured_is_the_mean_of_the_others_and_less_certain(
    tmp_path: Path,
) -> None:
    """One took 100 s for 1e12 operations, one 300 s; tables take 2 s, and plots 6 s."""
    run = begin_run(tmp_path, one=1e12, two=1e12, three=1e12, four=0, five=0, six=0)
    rules = ["search_plans", "sweep_units", "fit_patch", "gather_table", "plot_figure", "report"]
    for number, rule in enumerate(rules):
        run.jobs[number].rule = rule
    run.machine = Capacity(cores=1)
    write_workload(tmp_path / "one.log", LAYER_TOKENS, 100)
    write_workload(tmp_path / "two.log", LAYER_TOKENS, 300)
    for number, seconds in ((0, 100), (1, 300), (3, 2), (4, 6)):
        run.start(number, rules[number], 0.0)
        run.finish(number, seconds)
    left = run.guess_left(408.0)
    assert left is not None
    assert left.seconds == pytest.approx(200 + 4, rel=0.01)
    assert left.factor == 1.5

    run.jobs[2].rule = "sweep_units"
    run.jobs[5].rule = "plot_figure"
    left = run.guess_left(408.0)
    assert left is not None
    assert left.seconds == pytest.approx(300 + 6, rel=0.01)
    assert left.factor == 1.25


def test_without_a_forecast_a_rule_takes_as_long_as_its_jobs_that_ended(tmp_path: Path) -> None:
    jobs = {
        0: JobRecord("sweep_units", ("first",), computes=True),
        1: JobRecord("sweep_units", ("second",), computes=True),
        2: JobRecord("search_plans", ("search",), computes=True),
        3: JobRecord("gather_table", ("table",), computes=False),
    }
    counts = Counter(job.rule for job in jobs.values()) + Counter(total=4)
    run = RunProgress(counts, jobs, tmp_path / "no cost.json")
    run.start(0, "sweep_units", 0.0)
    run.finish(0, 100.0)
    run.start(1, "sweep_units", 100.0)
    assert seconds_left(run, 110.0) is None  # nothing is known of a search

    del jobs[2]
    counts["total"] = 3
    assert seconds_left(run, 110.0) == pytest.approx(90 + 1)


def test_what_a_killed_process_computed_is_no_pace_of_this_one(tmp_path: Path) -> None:
    """Half was there. In 100 s a tenth was added: four tenths are left, 400 s."""
    run = begin_run(tmp_path, search=1e12)
    run.start(0, "search_plans", 0.0)
    write_workload(tmp_path / "search.log", LAYER_TOKENS / 10, 100, earlier=LAYER_TOKENS / 2)
    assert seconds_left(run, 100.0) == pytest.approx(400, rel=0.02)


def test_a_job_that_did_more_than_was_forecast_takes_a_little_longer_still(
    tmp_path: Path,
) -> None:
    run = begin_run(tmp_path, search=1e12)
    run.start(0, "search_plans", 0.0)
    write_workload(tmp_path / "search.log", 1.7 * LAYER_TOKENS, 1000)
    assert run.guess_left(1000.0) == Guess(100.0, 1.5)
    assert run.line(1000.0) == "0 of 1 jobs, 17 min (91 %): search_plans (17 min); 1 to 3 min left"


def test_the_share_of_a_run_is_that_of_its_work_and_not_of_its_jobs(tmp_path: Path) -> None:
    """Three short jobs of four are done after 90 s, before a search of 810 s."""
    run = begin_run(tmp_path, one=1e11, two=1e11, three=1e11, search=2.7e12)
    run.machine = Capacity(cores=1)
    for number, name in enumerate(("one", "two", "three")):
        run.start(number, "search_plans", 30.0 * number)
        write_workload(tmp_path / f"{name}.log", LAYER_TOKENS / 10, 30)
        run.finish(number, 30.0 * (number + 1))
    run.n_done = 3
    assert run.line(90.0).startswith("3 of 4 jobs, 2 min (10 %)")


def test_a_line_names_what_runs_and_not_what_ended(tmp_path: Path) -> None:
    run = begin_run(tmp_path, search=1e12, first=0, second=0)
    run.start(1, "other", 0.0)
    run.start(0, "search_plans", 1.0)
    assert run.line(5.0) == "0 of 3 jobs, 5 s: other 0 of 2, search_plans"
    run.finish(1, 10.0)
    run.n_done = 1
    assert run.line(20.0) == "1 of 3 jobs, 20 s: search_plans (19 s)"


def test_a_line_says_what_a_job_counts(tmp_path: Path) -> None:
    run = begin_run(tmp_path, first=1e12, second=1e12)
    run.start(0, "search_plans", 0.0)
    assert run.line(9.0) == "0 of 2 jobs, 9 s: search_plans 0 of 2"
    assert run.line(15.0) == "0 of 2 jobs, 15 s: search_plans 0 of 2 (15 s)"
    write_workload(tmp_path / "first.log", LAYER_TOKENS / 2, 20.0, n_sets=41)
    expected = "0 of 2 jobs, 21 s: search_plans 0 of 2 (41 of 120 sets, 50 %)"
    assert run.line(21.0) == expected


@pytest.mark.parametrize(
    ("seconds_left", "factor", "text"),
    [
        (30, 1.5, "less than 2 min"),
        (240, 1.25, "3 to 5 min"),
        (1200, 2.0, "10 to 40 min"),
        (1200, 1.25, "15 to 25 min"),
        (3 * 3600, 1.5, "2 to 4.5 h"),
        (30 * 3600, 1.5, "20 to 45 h"),
    ],
)
def test_the_time_left_is_a_range_in_a_readable_unit(
    seconds_left: float, factor: float, text: str
) -> None:
    assert spoken_range(Guess(seconds_left, factor)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (600, "10 min"), (7200, "2.0 h")]
)
def test_a_duration_has_a_readable_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_short_job_says_at_its_end_what_it_has_done(tmp_path: Path) -> None:
    """Else only jobs of more than 15 s would say how fast the machine is."""
    log = tmp_path / "short.log"
    job = f"""
from types import SimpleNamespace
from lamina.models.workload import done
from lamina_workflow.runtime.script import run_script

with run_script(SimpleNamespace(log=[{str(log)!r}], resources={{}}, params={{}})):
    done.add(120.0)
    done.add(3.0)
"""
    subprocess.run([sys.executable, "-c", job], check=True)
    report = WorkReport.read(log)
    assert report is not None
    assert report.layer_tokens == 123


def test_layers_count_the_tokens_that_run_through_them() -> None:
    """Of five layers. Factors of a backward pass and of a written token are those of a cost."""
    model = tiny.model()
    workload.count_work(model)
    token_ids = tiny.tokens(3, 12)
    cut_model = materialise(model, {"units": ["2"]})
    tokens_before = workload.done.layer_tokens

    with torch.no_grad():
        model(token_ids)
        cut_model(token_ids)
    expected = 36 * (5 + 4)
    assert workload.done.layer_tokens - tokens_before == expected

    model(token_ids)
    expected += 36 * workload.TRAINING_FACTOR * 5
    assert workload.done.layer_tokens - tokens_before == expected

    model.generate(token_ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    # The prompt gives the first new token of each row; two more are run, of three rows at once.
    expected += 36 * 5 + 2 * (workload.GENERATION_FACTOR + 2) * 5
    assert workload.done.layer_tokens - tokens_before == expected


def test_the_pace_of_a_continued_job_is_that_of_its_last_process() -> None:
    """A killed process had done nine tenths of its work."""
    report = WorkReport(layer_tokens=1e8, seconds=90.0, earlier=9e8)
    job = JobRecord("search_plans", started=0.0, ended=95.0, report=report, flops=1e12)

    pace = Pace.measure([job], now=100.0)

    assert pace.by_rule == {"search_plans": pytest.approx(90.0 / 1e11)}
    assert pace.start_seconds == 5.0


def test_a_run_of_long_jobs_writes_lines_while_none_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina_workflow.runtime.log_handler._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("lamina_workflow.runtime.log_handler._LINE_SECONDS", 0.1)
    stream = io.StringIO()
    handler = open_handler(stream)
    now = time.time()
    stats = {"sweep_units": 2, "total": 2}
    send(handler, "", now, event=LogEvent.RUN_INFO, stats=stats)
    send(handler, "", now, event=LogEvent.JOB_INFO, jobid=1, rule_name="sweep_units", threads=1)
    time.sleep(0.5)
    handler.close()

    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["0 of 2 jobs", "0 of 2 jobs, 1 s: sweep_units 0 of 2"]
    assert len(lines) >= 4
    time.sleep(0.2)
    assert stream.getvalue().splitlines() == lines, "a closed handler writes nothing"


def test_a_terminal_has_one_line_that_is_overwritten() -> None:
    stream = Terminal()
    send_run(open_handler(stream))

    output = stream.getvalue()
    assert output.count("\n") == 1
    assert output.rstrip().endswith("20 of 20 jobs, 3 min")
    assert "9 of 20 jobs, 2 min: sweep_units 9 of 19" in output.split("\r")


@pytest.mark.parametrize("stream_class", [io.StringIO, Terminal])
def test_a_failed_job_is_named_once(stream_class: type[io.StringIO]) -> None:
    """What Snakemake writes of its error in addition is left out."""
    stream = stream_class()
    handler = open_handler(stream)
    script_error = "RuleException:\nCalledProcessError in file x, line 3:\nCommand 'set -e; …' …"
    run_error = "WorkflowError:\nAt least one job did not complete successfully."

    send_run(handler, failing_job=3)
    send(handler, script_error, 60, logging.ERROR)
    send(handler, run_error, 60, logging.ERROR)

    output = stream.getvalue()
    assert output.count("sweep_units failed: results/x.parquet") == 1
    assert "Error in rule" not in output
    assert "Command" not in output
    assert "WorkflowError" not in output


@pytest.mark.parametrize("stream_class", [io.StringIO, Terminal])
def test_warnings_and_restarts_are_shown(stream_class: type[io.StringIO]) -> None:
    stream = stream_class()
    handler = open_handler(stream)
    send(handler, "Trying to restart job 3.", 60)
    send(handler, "something is odd", 60, logging.WARNING)
    assert "Trying to restart job 3." in stream.getvalue()
    assert "something is odd" in stream.getvalue()


def test_a_run_that_is_stopped_names_no_job_as_failed() -> None:
    stream = io.StringIO()
    handler = open_handler(stream)
    stopping = "Terminating processes on user request, this might take some time."
    send(handler, stopping, 1, logging.WARNING)
    send_run(handler, failing_job=3)
    assert "failed" not in stream.getvalue()
    assert "Stopping" in stream.getvalue()

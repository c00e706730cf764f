"""The last lines of a run say what went wrong first, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

import snakemake_logger_plugin_lamina as plugin
from lamina.errors import LaminaError
from lamina_workflow.runtime import failures
from lamina_workflow.runtime.failures import FOLDER, first_failure
from lamina_workflow.runtime.preconditions import check_folder
from tests import ROOT
from tests.given.scripts import ENVIRONMENT

JOB_ERROR = """[Sat Nov 21 21:40:18 2026]
Error in rule {rule}:
    message: None
    jobid: {job}
    output: results/out.parquet
    log: {log} (check log file(s) for error details)
    shell:
        python x.py 2> log
        (command exited with non-zero exit code)
"""
SCRIPT_ERROR = "RuleException:\nCommand 'set -e; python /x/tmp2.{rule}.py' {ending}\n"
KILLED = "returned non-zero exit status 137."
RESTARTED = "Trying to restart job 3.\n"
FINISHED = "Finished jobid: 3 (Rule: prepare_model)\n"


@pytest.fixture
def run_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of Snakemake's log, not written, beside the logs of jobs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER, raising=False)
    first_line = "host=node1 CUDA_VISIBLE_DEVICES=0\n"
    message = "lamina: models.m: no.\nWrite yes.\n"
    traceback = "Traceback (most recent call last):\n  File x\nKeyError: 'dtype'\n\n"
    Path("refused.log").write_text(f"{first_line}a warning\n{message}")
    Path("bug.log").write_text(traceback)
    Path("silent.log").write_text(first_line)
    Path("slurm.log").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    return tmp_path / "run.log"


def job_error(rule: str, job: int, log: str) -> str:
    """What Snakemake writes into its log of a failed job."""
    return JOB_ERROR.format(rule=rule, job=job, log=log)


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ("bug.log", "KeyError: 'dtype'"),
        ("refused.log, slurm.log", "lamina: models.m: no."),
        ("silent.log, slurm.log", "oom_kill"),
    ],
    ids=["a bug", "a job of a cluster", "a job that wrote nothing"],
)
def test_a_failure_is_reported_by_the_end_of_a_log(run_log: Path, logs: str, reason: str) -> None:
    run_log.write_text(job_error("sweep_units", 7, logs))
    assert reason in str(first_failure(run_log))


def test_the_first_message_is_repeated_with_its_remedy(run_log: Path) -> None:
    first_error = job_error("prepare_model", 3, "refused.log")
    second_error = job_error("fit_patch", 4, "bug.log")
    run_log.write_text(f"Select jobs\n{first_error}{second_error}")
    assert first_failure(run_log) == (
        "\nThe first failure, in rule prepare_model:\n"
        "lamina: models.m: no.\nWrite yes.\n"
        "More in refused.log"
    )


def test_the_log_is_named_from_where_the_command_was_given(
    run_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failures.FOLDER, "lamina-mine")
    run_log.write_text(job_error("prepare_model", 3, "refused.log"))
    assert str(first_failure(run_log)).endswith("More in lamina-mine/refused.log")


def test_a_job_that_succeeded_when_it_was_tried_again_did_not_fail(run_log: Path) -> None:
    run_log.write_text(job_error("prepare_model", 3, "refused.log") + RESTARTED + FINISHED)
    assert first_failure(run_log) is None


def test_the_first_failure_is_that_of_a_job_that_never_succeeded(run_log: Path) -> None:
    retried_error = job_error("prepare_model", 3, "refused.log")
    final_error = job_error("fit_patch", 31, "bug.log")
    run_log.write_text(retried_error + RESTARTED + final_error + FINISHED)
    assert "rule fit_patch" in str(first_failure(run_log))


@pytest.mark.parametrize("log", ["silent.log", "never_written.log"])
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (KILLED, "Signal SIGKILL ended the job. The system sends it when memory"),
        ("died with <Signals.SIGSEGV: 11>.", "Signal SIGSEGV ended the job."),
        ("returned non-zero exit status 3.", "The job wrote nothing and ended with exit status 3."),
        ("", "The job wrote nothing and ended with an unknown status."),
    ],
)
def test_of_a_job_that_wrote_nothing_it_is_reported_how_it_ended(
    run_log: Path, log: str, ending: str, reason: str
) -> None:
    other_error = SCRIPT_ERROR.format(rule="fit_patch", ending="returned non-zero exit status 9.")
    script_error = SCRIPT_ERROR.format(rule="sweep_units", ending=ending) if ending else ""
    run_log.write_text(other_error + script_error + job_error("sweep_units", 7, log))

    failure = str(first_failure(run_log))

    assert reason in failure
    assert log in failure
    assert "lamina: memory ran out" not in failure


def test_a_signal_is_reported_after_the_last_line_of_a_log(run_log: Path) -> None:
    Path("silent.log").write_text("host=node1\n 92% done\n")
    script_error = SCRIPT_ERROR.format(rule="sweep_units", ending=KILLED)
    run_log.write_text(script_error + job_error("sweep_units", 7, "silent.log"))
    assert "92% done\nSignal SIGKILL ended the job." in str(first_failure(run_log))


def test_a_bar_of_progress_is_no_reason(run_log: Path) -> None:
    Path("bar.log").write_text("host=node1\n100%|█████| 30/30 [00:00<00:00, 5871.50it/s]\n")
    script_error = SCRIPT_ERROR.format(
        rule="sweep_units", ending="died with <Signals.SIGTERM: 15>."
    )
    run_log.write_text(script_error + job_error("sweep_units", 7, "bar.log"))
    failure = str(first_failure(run_log))
    assert "30/30" not in failure
    assert "Signal SIGTERM ended the job." in failure


def test_a_run_that_was_stopped_has_no_failure(run_log: Path) -> None:
    stopping = "Terminating processes on user request, this might take some time.\n"
    run_log.write_text(stopping + job_error("fit_patch", 4, "bug.log"))
    assert first_failure(run_log) == "\nStopped. Run the same command to continue."


def test_a_run_without_a_failed_job_reports_none(run_log: Path) -> None:
    run_log.write_text("Building DAG of jobs...\nMissingInputException\n")
    assert first_failure(run_log) is None


HOLD_RESULTS = """
import sys
from pathlib import Path
from lamina_workflow.runtime.preconditions import hold_results

hold_results(Path(sys.argv[1]))
"""
HOLD_RESULTS_LONG = HOLD_RESULTS + "print(flush=True)\ninput()\n"


def test_one_run_at_a_time_holds_a_results_folder(tmp_path: Path) -> None:
    """Also if another clone reaches it by a link. A run keeps no reference to its lock."""
    results = tmp_path / "results"
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/results").symlink_to(results)
    second_command = [sys.executable, "-c", HOLD_RESULTS, str(tmp_path / "clone/results")]

    first_run = subprocess.Popen(
        [sys.executable, "-c", HOLD_RESULTS_LONG, str(results)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first_run.stdout is not None
    assert first_run.stdout.readline(), "the first run holds the folder"
    second_run = subprocess.run(
        second_command, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert second_run.returncode == 1
    assert "is being written by another run" in second_run.stderr

    first_run.communicate("\n")
    assert subprocess.run(second_command, env=ENVIRONMENT, check=False).returncode == 0


def test_a_folder_whose_name_has_braces_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a {x}"
    folder.mkdir()
    check_folder(tmp_path)
    with pytest.raises(LaminaError, match="braces"):
        check_folder(folder)


def test_a_folder_with_a_file_that_hides_a_module_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path)
    (tmp_path / "json.py").touch()
    with pytest.raises(LaminaError, match="json.py has the name of a module"):
        check_folder(tmp_path)


SNAKEFILE = ["--snakefile", str(ROOT / "workflow/Snakefile")]


def test_a_cache_that_cannot_be_written_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file/cache"))
    with pytest.raises(SystemExit, match=r"cannot be written to .*Set XDG_CACHE_HOME and HF_HOME"):
        plugin.check_command(SNAKEFILE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plugin.check_command([*SNAKEFILE, "--cores", "2", "--", "all"])


def test_a_missing_configuration_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [*SNAKEFILE, "-n", "--configfile", "nowhere.yaml", "--cores", "2"]
    with pytest.raises(SystemExit, match="there is no configuration file 'nowhere.yaml'"):
        plugin.check_command(command)


def test_a_configuration_that_is_no_yaml_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "bad.yaml").write_text("models: {a: [\nx")
    with pytest.raises(SystemExit, match=r"bad.yaml, line 2"):
        plugin.check_command([*SNAKEFILE, f"--configfile={tmp_path / 'bad.yaml'}"])

"""The last lines of a run say what went wrong first, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

import snakemake_logger_plugin_lamina as plugin
from lamina.errors import LaminaError
from lamina_workflow.runtime.failures import first_failure
from lamina_workflow.runtime.preconditions import check_folder
from tests import ROOT
from tests.given.scripts import ENVIRONMENT

ERROR = """[Sat Nov 21 21:40:18 2026]
Error in rule {rule}:
    message: None
    jobid: {job}
    output: results/out.parquet
    log: {log} (check log file(s) for error details)
    shell:
        python x.py 2> log
        (command exited with non-zero exit code)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with logs of two failed jobs, and the place of Snakemake's log."""
    monkeypatch.chdir(tmp_path)
    Path("one.log").write_text(
        "host=node1 CUDA_VISIBLE_DEVICES=0\na warning\nlamina: models.m: no.\nWrite yes.\n"
    )
    Path("two.log").write_text(
        "Traceback (most recent call last):\n  File x\nKeyError: 'dtype'\n\n"
    )
    Path("three.log").write_text("host=node1 CUDA_VISIBLE_DEVICES=0\n")
    return tmp_path / "run.log"


def error(rule: str, job: int, log: str) -> str:
    return ERROR.format(rule=rule, job=job, log=log)


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (("fit_patch", 4, "two.log"), "KeyError: 'dtype'"),
        (("sweep_units", 7, "one.log, slurm.log"), "lamina: models.m: no."),
        (("sweep_units", 7, "three.log, slurm.log"), "oom_kill"),
    ],
    ids=["a bug", "a job of a cluster", "one that says nothing"],
)
def test_a_failure_is_told_by_the_end_of_a_log(
    run: Path, failed: tuple[str, int, str], said: str
) -> None:
    Path("slurm.log").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    run.write_text(error(*failed))
    assert said in str(first_failure(run))


def test_the_first_message_is_repeated_with_its_remedy(run: Path) -> None:
    run.write_text(
        "Select jobs\n" + error("prepare_model", 3, "one.log") + error("fit_patch", 4, "two.log")
    )
    said = first_failure(run)
    assert (
        said
        == "\nThe first failure, in rule prepare_model:\nlamina: models.m: no.\nWrite yes.\nMore in one.log"
    )


def test_a_job_that_was_tried_again_and_succeeded_did_not_fail(run: Path) -> None:
    run.write_text(
        error("prepare_model", 3, "one.log")
        + "Trying to restart job 3.\n"
        + error("fit_patch", 31, "two.log")
        + "Finished jobid: 3 (Rule: prepare_model)\n"
    )
    assert "rule fit_patch" in str(first_failure(run))
    run.write_text(
        error("prepare_model", 3, "one.log") + "Finished jobid: 3 (Rule: prepare_model)\n"
    )
    assert first_failure(run) is None


@pytest.mark.parametrize("log", ["three.log", "never_written.log"])
@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (
            "returned non-zero exit status 137.",
            "Signal SIGKILL ended the job. The system sends it where memory",
        ),
        ("died with <Signals.SIGSEGV: 11>.", "Signal SIGSEGV ended the job."),
        ("returned non-zero exit status 3.", "The job wrote nothing and ended with exit status 3."),
        ("", "The job wrote nothing and ended with an unknown status."),
    ],
)
def test_of_a_job_that_says_nothing_it_is_told_how_it_ended(
    run: Path, log: str, ended: str, said: str
) -> None:
    other = (
        "RuleException:\nCommand 'python /x/tmp1.fit_patch.py' returned non-zero exit status 9.\n"
    )
    how = (
        f"RuleException:\nCommand 'set -e; python /x/tmp2.sweep_units.py' {ended}\n"
        if ended
        else ""
    )
    run.write_text(other + how + error("sweep_units", 7, log))
    found = str(first_failure(run))
    assert said in found and log in found and "lamina: memory ran out" not in found


def test_a_job_that_a_signal_ended_is_not_told_by_its_last_line_alone(run: Path) -> None:
    how = "RuleException:\nCommand 'python /x/tmp2.sweep_units.py' returned non-zero exit status 137.\n"
    Path("three.log").write_text("host=node1\n 92% done\n")
    run.write_text(how + error("sweep_units", 7, "three.log"))
    assert "92% done\nSignal SIGKILL ended the job." in str(first_failure(run))


def test_a_run_that_was_stopped_has_no_failure(run: Path) -> None:
    words = "Terminating processes on user request, this might take some time.\n"
    run.write_text(words + error("fit_patch", 4, "two.log"))
    assert first_failure(run) == "\nStopped. The same command goes on."


def test_one_run_at_a_time_holds_a_results_folder(tmp_path: Path) -> None:
    """Also if another clone reaches it by a link."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/results").symlink_to(tmp_path / "results")
    code = (
        "import sys; from pathlib import Path; "
        "from lamina_workflow.runtime.preconditions import hold_results; hold_results(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "clone/results")]
    # A run keeps no reference to its lock.
    first = [sys.executable, "-c", f"{code}; print(flush=True); input()", str(tmp_path / "results")]
    run = subprocess.Popen(
        first, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdout.readline()
    other = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert other.returncode == 1 and "is being written by another run" in other.stderr
    run.communicate("\n")
    assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == 0


def test_a_run_without_a_failed_job_has_nothing_to_say(run: Path) -> None:
    run.write_text("Building DAG of jobs...\nMissingInputException\n")
    assert first_failure(run) is None


@pytest.mark.parametrize(
    ("file", "said"), [("a {x}/b", "braces"), ("json.py", "json.py has the name of a module")]
)
def test_a_folder_that_snakemake_or_python_would_misread_is_refused(
    file: str, said: str, tmp_path: Path
) -> None:
    check_folder(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(LaminaError, match=said):
        check_folder((tmp_path / file).parent)


def test_a_missing_cache_or_configuration_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["--snakefile", str(ROOT / "Snakefile")]
    (tmp_path / "file").touch()
    (tmp_path / "bad.yaml").write_text("models: {a: [\nx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file/cache"))
    with pytest.raises(SystemExit, match=r"cannot be written to .*Set XDG_CACHE_HOME and HF_HOME"):
        plugin.check_command(own)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plugin.check_command([*own, "--cores", "2", "--", "all"])
    with pytest.raises(SystemExit, match="there is no configuration file 'nowhere.yaml'"):
        plugin.check_command([*own, "-n", "--configfile", "nowhere.yaml", "--cores", "2"])
    with pytest.raises(SystemExit, match=r"bad.yaml, line 2"):
        plugin.check_command([*own, f"--configfile={tmp_path / 'bad.yaml'}"])

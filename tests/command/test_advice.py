"""Which commands say that a configuration has too few questions, and in whose words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lamina_workflow import cli
from lamina_workflow.checks import advice
from tests import ROOT
from tests.given.configurations import write_model_and_data

STUDY = """
models: {small: {source: small}}
calibrations: {mine: {choices: mine.jsonl}}
selectors: {deepest: {strategy: deepest}}
benchmarks: {tasks: {mine: {choices: mine_test.jsonl}}}
studies: {prune: {models: small, calibrations: mine, selectors: deepest, removed: 1}}
"""
VARIANT = "small/mine/deepest/removed=1/none/none"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose configuration has a single question for each file."""
    write_model_and_data(tmp_path)
    (tmp_path / "config.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "is_wanted"),
    [
        (["run"], True),
        (["plan"], True),
        (["lm-eval", VARIANT], False),
        (["export", VARIANT], False),
        (["paper", "ghosted-layers"], True),
        (["paper", "ghosted-layers", "--small", "small"], False),
    ],
)
def test_advice_is_for_commands_that_plan_or_run_a_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], is_wanted: bool
) -> None:
    switches: list[bool] = []

    def note_switch(command: list[str]) -> None:
        if "snakemake" in command:
            switches.append(advice.is_wanted(os.environ))

    monkeypatch.setenv(advice.SWITCH, "")
    monkeypatch.setattr(cli, "_run_command", note_switch)
    monkeypatch.setattr(cli, "_count_jobs", lambda configuration: 0)

    CliRunner().invoke(cli.app, arguments)

    assert switches == [is_wanted]


@pytest.mark.parametrize("switch", ["yes", "no"])
def test_the_workflow_gives_advice_unless_its_command_wants_none(folder: Path, switch: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "rules", "--cores", "1"]
    command += ["--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "config.yaml"]
    environment = os.environ | {advice.SWITCH: switch, "PYTHONPATH": str(ROOT / "src")}

    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    assert process.returncode == 0, process.stderr
    is_said = "too few to tell variants apart" in process.stdout + process.stderr
    assert is_said == (switch == "yes")

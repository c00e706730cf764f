"""What a user writes after `make` reaches commands as it is: nothing in it is run."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

# The variables of the Makefile, each with a target that reads it and what that needs as well.
TARGETS = {
    "CONFIG": ["run"],
    "CORES": ["run"],
    "VARIANT": ["export"],
    "FORM": ["export", "VARIANT=x"],
    "SHARD": ["export", "VARIANT=x"],
    "Q": ["query"],
    "RATE": ["plan"],
    "A": ["compare", "B=x"],
    "B": ["compare", "A=x"],
}
# Writes its arguments into a file, one a line.
RECORDING_COMMAND = """#!/bin/sh
printf "%s\\n" "$@" >> recorded
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile, with commands that only record their arguments."""
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    (tmp_path / "requirements.lock").touch()
    commands = tmp_path / ".venv/bin"
    commands.mkdir(parents=True)
    (tmp_path / ".venv/installed").touch()
    for name in ("python", "snakemake"):
        (commands / name).write_text(RECORDING_COMMAND)
        (commands / name).chmod(0o755)
    return tmp_path


def make(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", *arguments],
        cwd=project,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def has_recorded(project: Path) -> bool:
    """Whether a command was started."""
    return (project / "recorded").exists()


def recorded_arguments(project: Path) -> list[str]:
    return (project / "recorded").read_text().splitlines()


INJECTIONS = [
    "$(shell touch ran)",
    "`touch ran`",
    "x;touch${IFS}ran",
    '";touch ran;"',
    "$$(touch ran)",
]


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize("variable", ["FORM", "SHARD", "Q", "A", "B"])
def test_a_value_is_an_argument_and_nothing_in_it_runs(
    variable: str, injection: str, project: Path
) -> None:
    make(project, *TARGETS[variable], f"{variable}={injection}")
    assert not (project / "ran").exists()
    assert injection in (project / "recorded").read_text()


@pytest.mark.parametrize("injection", INJECTIONS)
def test_the_name_of_a_variant_is_an_argument_and_nothing_in_it_runs(
    injection: str, project: Path
) -> None:
    """Names of several variants are separated by blanks."""
    make(project, "export", f"VARIANT={injection}")
    assert not (project / "ran").exists()
    for word in injection.split():
        assert word in (project / "recorded").read_text()


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize("variable", ["CORES", "RATE"])
def test_nothing_runs_in_what_should_be_a_number(
    variable: str, injection: str, project: Path
) -> None:
    make(project, *TARGETS[variable], f"{variable}={injection}")
    assert not (project / "ran").exists()
    assert not has_recorded(project)


@pytest.mark.parametrize("injection", INJECTIONS)
def test_nothing_runs_in_the_name_of_a_configuration(injection: str, project: Path) -> None:
    """A blank in it would be refused before."""
    name = injection.replace(" ", "${IFS}")
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).touch()
    make(project, "run", f"CONFIG={name}")
    assert not (project / "ran").exists()


def test_several_variants_are_as_many_exports(project: Path) -> None:
    assert make(project, "export", "VARIANT=a/b c/*").returncode == 0
    arguments = recorded_arguments(project)
    exported = [arguments[at + 1] for at, word in enumerate(arguments) if word == "--"]
    assert exported == ["a/b", "c/*"]


@pytest.mark.parametrize("cores", ["0", "-1", "two", "1.5", ""])
@pytest.mark.parametrize("target", [["run"], ["plan"], ["export", "VARIANT=x"]])
def test_cores_are_a_number_from_one_on(target: list[str], cores: str, project: Path) -> None:
    command = make(project, *target, f"CORES={cores}")
    assert command.returncode != 0
    assert f"CORES={cores}: write a number from 1 on, or all" in command.stderr
    assert not has_recorded(project)


@pytest.mark.parametrize("rate", ["fast", "0", "-3", "nan", "inf", "1e999", "100TFLOP/s", "1 2"])
def test_a_rate_that_no_device_has_is_refused_before_any_job(rate: str, project: Path) -> None:
    command = make(project, "plan", f"RATE={rate}")
    assert command.returncode != 0
    assert f"RATE={rate}: no device computes at that rate" in command.stderr
    assert not has_recorded(project)


@pytest.mark.parametrize("rate", ["100", "2.5", ".5", "1e2", "1."])
def test_a_rate_reaches_the_plan_as_it_is_written(rate: str, project: Path) -> None:
    assert make(project, "plan", f"RATE={rate}").returncode == 0
    arguments = recorded_arguments(project)
    assert arguments[arguments.index("--rate") + 1] == rate


@pytest.mark.parametrize("value", ["0", "no", "$(shell touch ran)"])
@pytest.mark.parametrize(
    ("target", "switch"),
    [("plan", "CALIBRATE"), ("query", "WIDE"), ("query", "CSV"), ("test-cluster", "SLOW")],
)
def test_a_switch_is_one_or_absent(target: str, switch: str, value: str, project: Path) -> None:
    """What a user writes to switch it off would switch it on."""
    command = make(project, target, f"{switch}={value}")
    assert command.returncode != 0
    assert f"{switch}={value}: write {switch}=1" in command.stderr
    assert not has_recorded(project)
    assert not (project / "ran").exists()


@pytest.mark.parametrize(
    "argument", ["config=config/mine.yaml", "cores=2", "q=which_layers_matter"]
)
def test_names_in_lower_case_are_refused(argument: str, project: Path) -> None:
    command = make(project, "plan", argument)
    assert command.returncode != 0
    assert "names are written in capital letters" in command.stderr
    assert not has_recorded(project)


def test_the_command_line_is_not_printed(project: Path) -> None:
    command = make(project, "run", "CORES=2")
    assert command.returncode == 0
    assert "snakemake" not in command.stdout
    assert "MALLOC" not in command.stdout


def test_a_configuration_is_a_path_and_no_pattern(project: Path) -> None:
    (project / "mine1.yaml").touch()
    (project / "mine[1].yaml").touch()
    assert make(project, "run", "CONFIG=mine[1].yaml").returncode == 0
    assert "mine[1].yaml" in recorded_arguments(project)


def test_nothing_is_installed_into_the_environment_of_another_project(project: Path) -> None:
    (project / ".venv/installed").unlink()
    (project / ".venv/pyvenv.cfg").touch()
    command = make(project, "run")
    assert command.returncode == 2
    assert "another project's .venv" in command.stderr
    assert not has_recorded(project)

"""What is written behind `make` reaches commands as it stands: neither make nor the shell runs anything in it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

TARGETS = {
    "CONFIG": ["run"],
    "CORES": ["run"],
    "VARIANT": ["export"],
    "Q": ["query"],
    "RATE": ["plan"],
}
TARGETS |= {"A": ["compare", "B=x"], "B": ["compare", "A=x"]}
TARGETS |= dict.fromkeys(("FORM", "SHARD"), ["export", "VARIANT=x"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile beside commands that only write down what they were given."""
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    (tmp_path / "requirements.lock").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/installed").touch()
    for command in ("python", "snakemake"):
        path = tmp_path / ".venv/bin" / command
        path.write_text(
            '#!/bin/sh\nprintf "%s\\n" "$@" "$LAMINA_EXPORT_FORM" "$LAMINA_EXPORT_SHARD" >> told\n'
        )
        path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "written",
    ["$(shell touch ran)", "`touch ran`", "x;touch${IFS}ran", '";touch ran;"', "$$(touch ran)"],
)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_runs_in_what_a_user_writes(name: str, written: str, project: Path) -> None:
    if name == "CONFIG":
        written = written.replace(" ", "${IFS}")  # a blank is refused before
        (project / written).parent.mkdir(exist_ok=True)
        (project / written).touch()
    environment = {"PATH": os.environ["PATH"]}
    command = ["make", *TARGETS[name], f"{name}={written}"]
    subprocess.run(
        command, cwd=project, env=environment, capture_output=True, timeout=60, check=False
    )
    assert not (project / "ran").exists()
    if name in ("CORES", "RATE"):  # it is no number
        assert not (project / "told").exists()
    elif name != "CONFIG":  # a name with such letters in it may be no file to make
        told = (project / "told").read_text()
        assert (
            all(word in told for word in written.split()) if name == "VARIANT" else written in told
        )


def test_several_variants_are_as_many_targets(project: Path) -> None:
    subprocess.run(
        ["make", "export", "VARIANT=a/b c/*"], cwd=project, capture_output=True, check=True
    )
    told = (project / "told").read_text().splitlines()
    assert told[told.index("--") + 1 :][:2] == ["results/exports/a/b", "results/exports/c/*"]


@pytest.mark.parametrize("cores", ["0", "-1", "two", "1.5", ""])
@pytest.mark.parametrize("target", [["run"], ["plan"], ["export", "VARIANT=x"]])
def test_cores_are_a_number_from_one_on(target: list[str], cores: str, project: Path) -> None:
    done = subprocess.run(
        ["make", *target, f"CORES={cores}"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and f"CORES={cores}: write a number from 1 on, or all" in done.stderr
    assert not (project / "told").exists()


@pytest.mark.parametrize("rate", ["fast", "0", "-3", "nan", "inf", "1e999", "100TFLOP/s", "1 2"])
def test_a_rate_that_no_device_has_is_refused_before_any_job(rate: str, project: Path) -> None:
    done = subprocess.run(
        ["make", "plan", f"RATE={rate}"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode and f"RATE={rate}: no device computes at that rate" in done.stderr
    assert not (project / "told").exists()


@pytest.mark.parametrize("rate", ["100", "2.5", ".5", "1e2", "1."])
def test_a_rate_reaches_the_plan_as_it_is_written(rate: str, project: Path) -> None:
    subprocess.run(["make", "plan", f"RATE={rate}"], cwd=project, capture_output=True, check=True)
    told = (project / "told").read_text().splitlines()
    assert told[told.index("--rate") + 1] == rate


@pytest.mark.parametrize(
    ("target", "switch"),
    [("plan", "CALIBRATE"), ("query", "WIDE"), ("query", "CSV"), ("test-cluster", "SLOW")],
)
def test_a_switch_is_one_or_left_out(target: str, switch: str, project: Path) -> None:
    """What a user writes to switch it off would switch it on."""
    for written in ("0", "no", "$(shell touch ran)"):
        done = subprocess.run(
            ["make", target, f"{switch}={written}"],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode and f"{switch}={written}: write {switch}=1" in done.stderr
    assert not (project / "told").exists() and not (project / "ran").exists()


@pytest.mark.parametrize("written", ["config=config/mine.yaml", "cores=2", "q=which_layers_matter"])
def test_names_in_lower_case_are_not_passed_over(written: str, project: Path) -> None:
    done = subprocess.run(
        ["make", "plan", written], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode and "names are written in capital letters" in done.stderr
    assert not (project / "told").exists()


def test_the_first_line_of_a_command_is_not_the_command(project: Path) -> None:
    done = subprocess.run(
        ["make", "run", "CORES=2"], cwd=project, capture_output=True, text=True, check=True
    )
    assert "snakemake" not in done.stdout and "MALLOC" not in done.stdout


def test_a_configuration_is_a_path_and_no_pattern(project: Path) -> None:
    (project / "mine1.yaml").touch()
    (project / "mine[1].yaml").touch()
    subprocess.run(
        ["make", "run", "CONFIG=mine[1].yaml"], cwd=project, capture_output=True, check=True
    )
    assert "mine[1].yaml" in (project / "told").read_text().splitlines()


def test_an_environment_of_another_project_is_not_filled(project: Path) -> None:
    (project / ".venv/installed").unlink()
    (project / ".venv/pyvenv.cfg").touch()
    done = subprocess.run(["make", "run"], cwd=project, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and "another project's .venv" in done.stderr
        and not (project / "told").exists()
    )

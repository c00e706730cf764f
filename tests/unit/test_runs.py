"""Every run in a folder has a record and a socket of its own, and what would end a run's jobs sees that it lives."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.errors import LaminaError
from lamina.runtime import runs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in the folder, driven by another process."""
    code = "import time; from lamina.runtime import runs; runs.begin(); print(1, flush=True); time.sleep(600)"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/src"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_two_runs_take_nothing_of_each_other(
    other: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (theirs,) = runs.FOLDER.glob("*")
    (theirs / "warm").touch()
    runs.begin()
    assert len({runs.own(), theirs}) == 2 and (theirs / "warm").exists()
    assert oct(runs.own().stat().st_mode & 0o777) == "0o700"
    runs.end()
    assert list(runs.FOLDER.glob("*")) == [theirs]


def test_a_living_run_is_named_and_a_killed_one_is_tidied_away(
    other: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LaminaError, match=f"at work as process {other.pid}: stop it with `kill -INT {other.pid}`"):
        runs.check(tmp_path)
    other.kill()
    other.wait()
    runs.check(tmp_path)
    monkeypatch.chdir(tmp_path)
    runs.begin()
    assert list(runs.FOLDER.glob("*")) == [runs.own()]
    runs.end()


def test_a_process_that_has_the_number_of_a_dead_one_is_no_run(tmp_path: Path) -> None:
    record = tmp_path / runs.FOLDER / "any/driver"
    record.parent.mkdir(parents=True)
    record.write_text(f"{os.uname().nodename} {os.getpid()} 1\n")
    runs.check(tmp_path)


def test_a_run_that_was_started_elsewhere_is_asked_about(tmp_path: Path) -> None:
    record = tmp_path / runs.FOLDER / "any/driver"
    record.parent.mkdir(parents=True)
    record.write_text("another.machine 7 1\n")
    with pytest.raises(LaminaError, match="started on another.machine.*FORCE=1"):
        runs.check(tmp_path)
    runs.check(tmp_path, elsewhere=True)

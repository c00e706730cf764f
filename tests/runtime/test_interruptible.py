"""Ctrl-C ends a command with one line, and the folder can be used again at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

STOPPED = "Stopped. Run the same command to continue.\n"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A command in a process group of its own that takes Ctrl-C, as a shell starts it.

    Tests that run in the background inherit that it is ignored.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments],
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(stream: IO[str], beginning: str) -> None:
    """Read lines up to one that begins in this way."""
    while not (line := stream.readline()).startswith(beginning):
        assert line, f"no line begins with {beginning}"


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send Ctrl-C to all processes of a command; returns what it still writes."""
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    return output


IMPORTING = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
# typer ends a command with a status alone.
WORKING = """
import time, typer

def work():
    print("working", flush=True)
    time.sleep(60)

typer.run(work)
"""


@pytest.mark.parametrize(
    ("statements", "first_line"), [(IMPORTING, "importing"), (WORKING, "working")]
)
def test_a_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: str, first_line: str
) -> None:
    (tmp_path / "slow_command.py").write_text(statements)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path[1:]]))

    process = start(tmp_path, "lamina_workflow.runtime.interruptible", "slow_command")
    assert process.stdout is not None
    read_until(process.stdout, first_line)

    assert interrupt(process) == STOPPED


def test_measuring_the_machine_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that it starts for this would write where they were."""
    (tmp_path / "slow_module.py").write_text(IMPORTING)
    command = (
        "from lamina_workflow.cost.forecast import _time_import\n_time_import('slow_module')\n"
    )
    (tmp_path / "slow_command.py").write_text(command)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path[1:]]))

    process = start(tmp_path, "lamina_workflow.runtime.interruptible", "slow_command")
    assert process.stdout is not None
    read_until(process.stdout, "importing")

    assert interrupt(process) == STOPPED


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_no_lock(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "lamina_workflow", "example", str(tmp_path / "study")],
        check=True,
    )
    for first_line in ("Listing what is left to do", "0 of "):
        process = start(tmp_path / "study", "lamina_workflow", "run", "--cores", "1")
        assert process.stdout is not None
        read_until(process.stdout, first_line)
        output = interrupt(process)
        assert output.endswith(STOPPED)
        assert "Traceback" not in output
        assert not list((tmp_path / "study").glob(".snakemake/locks/*"))

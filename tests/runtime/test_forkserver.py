"""The process that forks for jobs runs their scripts as they would run alone.

It ends with the process that started it.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina_workflow.runtime import forkserver
from tests import ROOT
from tests.faults.study import wait_until
from tests.given.slow import slow_except

START_SERVER = """
import os, sys
from lamina_workflow.runtime import forkserver
forkserver.start_server()
print(os.environ[forkserver.ADDRESS], flush=True)
sys.stdin.read()
"""
ASK_SERVER = """
import os, sys
from lamina_workflow.runtime import forkserver
forkserver.ask_server()
"""


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of a server, which has to end with the process that started it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    starter = subprocess.Popen(
        [sys.executable, "-c", START_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    file = Path(starter.stdout.readline().strip())
    yield str(file)
    starter.communicate("")
    wait_until(lambda: not file.exists())


def test_where_no_socket_can_be_there_is_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of a socket has at most 107 bytes."""
    long_folder = tmp_path / ("long" * 30)
    long_folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long_folder))
    monkeypatch.delenv(forkserver.ADDRESS, raising=False)

    forkserver.start_server()

    assert forkserver.ADDRESS not in os.environ


def start_job(folder: Path, code: str, address: str | None) -> subprocess.Popen[str]:
    """A job whose script is forked by the server at an address, if there is one."""
    script = folder / "job.py"
    script.write_text(ASK_SERVER + code)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OF_THE_JOB": "1"}
    if address:
        environment["LAMINA_FORKSERVER"] = address
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


DESCRIBE_PROCESS = """
import torch
print(os.getcwd())
print(os.environ["OF_THE_JOB"])
print(torch.get_num_threads())
print("peft" in sys.modules)
print(__name__)
sys.exit("wrong input")
"""


def test_a_fork_runs_a_script_with_the_environment_streams_and_status_of_its_job(
    tmp_path: Path, address: str
) -> None:
    job = start_job(tmp_path, DESCRIBE_PROCESS, address)

    output, error = job.communicate()

    working_folder, variable, n_threads, is_forked, module_name = output.splitlines()
    assert working_folder == str(tmp_path)
    assert variable == "1"
    assert n_threads == "2"
    assert is_forked == "True"  # the server has imported `peft`, which the script did not
    assert module_name == "__main__"
    assert job.returncode == 1
    assert error.strip() == "wrong input"


@pytest.mark.parametrize("socket_name", [None, "no socket"])
def test_without_a_server_a_script_runs_by_itself(tmp_path: Path, socket_name: str | None) -> None:
    address = str(tmp_path / socket_name) if socket_name else None
    job = start_job(tmp_path, "print('peft' in sys.modules)\nsys.exit(3)\n", address)
    output, _ = job.communicate()
    assert output.strip() == "False"
    assert job.returncode == 3


@pytest.mark.parametrize("killed", slow_except(["job"], ["job", "fork"]))
def test_a_fork_ends_with_its_job_and_a_job_as_its_fork(
    tmp_path: Path, address: str, killed: str
) -> None:
    code = "import time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    job = start_job(tmp_path, code, address)
    assert job.stdout is not None
    fork_pid = int(job.stdout.readline())
    assert fork_pid != job.pid

    os.kill(job.pid if killed == "job" else fork_pid, signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{fork_pid}").exists())


def test_a_fork_ends_whose_job_was_killed_while_it_asked(address: str) -> None:
    """The fork holds the streams of its job; nobody else does once the connection is closed."""
    reading_end, writing_end = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [(1000).to_bytes(8)], [writing_end] * 3)
        connection.sendall(b'{"cwd":')
    os.close(writing_end)

    readable, _, _ = select.select([reading_end], [], [], 60)

    assert readable, "the fork waits for the rest"
    assert os.read(reading_end, 1) == b""
    os.close(reading_end)

"""The process that forks for jobs: it runs their scripts as they would run alone, and ends with what started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.faults.study import until

STARTER = """
import os, sys
from lamina_workflow.runtime import forkserver
forkserver.start_server()
print(os.environ[forkserver.ADDRESS], flush=True)
sys.stdin.read()
"""
ASKER = "from lamina_workflow.runtime import forkserver\nforkserver.ask_server()\nimport os, sys\n"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The socket of a process that was started; it has to go with its starter."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    socket = Path(starter.stdout.readline().strip())
    yield str(socket)
    starter.communicate("")
    until(lambda: not socket.exists())


def script(folder: Path, body: str) -> Path:
    file = folder / "job.py"
    file.write_text(ASKER + body)
    return file


def job(file: Path, address: str | None, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OF_THE_JOB": "1"}
    if address:
        environment["LAMINA_FORKSERVER"] = address
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(file)], cwd=folder, env=environment, **pipes)


def test_a_fork_runs_a_script_with_the_environment_streams_and_status_of_its_job(
    tmp_path: Path, address: str
) -> None:
    body = (
        "import torch\n"
        "print(os.getcwd(), os.environ['OF_THE_JOB'], torch.get_num_threads(), 'peft' in sys.modules, __name__)\n"
        "sys.exit('wrong input')\n"
    )
    served = job(script(tmp_path, body), address, tmp_path)
    out, err = served.communicate()
    assert out.split() == [
        str(tmp_path),
        "1",
        "2",
        "True",
        "__main__",
    ]  # `peft`: the script did not import it
    assert (served.returncode, err.strip()) == (1, "wrong input")


def test_without_the_process_a_script_runs_by_itself(tmp_path: Path) -> None:
    for nowhere in (None, str(tmp_path / "no socket")):
        alone = job(
            script(tmp_path, "print('peft' in sys.modules)\nsys.exit(3)\n"), nowhere, tmp_path
        )
        assert alone.communicate()[0].strip() == "False"
        assert alone.returncode == 3


def test_a_fork_ends_with_its_job_and_a_job_as_its_fork(tmp_path: Path, address: str) -> None:
    body = "import time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    for killed in ("job", "fork"):
        waiting = job(script(tmp_path, body), address, tmp_path)
        fork = int(waiting.stdout.readline())
        assert fork != waiting.pid
        os.kill(waiting.pid if killed == "job" else fork, signal.SIGKILL)
        assert waiting.wait() == -signal.SIGKILL
        until(lambda fork=fork: not Path(f"/proc/{fork}").exists())

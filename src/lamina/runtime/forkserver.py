"""Torch and transformers imported once for the jobs of a run: a process that forks for each of them.

To import them takes four seconds of each job, which was a third of the default study. `start` begins the process with
a run on a machine without a GPU (a fork cannot share what CUDA has begun). A script that loads a model imports this
module first: the process then forks, the fork runs the script from its first line with the environment and the streams
of the job, and the job waits for its end. The process imports no module of lamina, so a fork runs the code that lies on
the disk. Where there is no such process, the script imports the libraries itself.
"""

import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

ADDRESS = "LAMINA_FORKSERVER"  # the environment variable with the path of the socket
LIBRARIES = (
    "pyarrow.parquet",
    "scipy.stats",
    "transformers.modeling_utils",
    "lm_eval.models.huggingface",
    "peft",
)
_LENGTH = 8  # bytes of the number that says how long a request is

_processes: list[
    subprocess.Popen[bytes]
] = []  # ends with this process, which holds the other end of its input


def start() -> None:
    """Start the process for the jobs that this process begins. It imports the libraries when the first job asks."""
    folder = tempfile.mkdtemp(prefix="lamina-")
    os.environ[ADDRESS] = f"{folder}/socket"
    # One thread for libraries that read this when they are imported; a fork tells torch its number.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[ADDRESS])
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-P", "-m", __name__, str(number)]
        options: dict[str, Any] = {
            "pass_fds": [number],
            "start_new_session": True,
            "env": environment,
        }
        # A fork writes into the streams of its job.
        options |= {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        _processes.append(subprocess.Popen(command, **options))


def ask() -> None:
    """Let a fork run the script of this process, and end as the fork ends. Return if there is no process to ask."""
    address = os.environ.pop(ADDRESS, None)
    if address is None:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            return
        request = {"cwd": str(Path.cwd()), "environment": dict(os.environ), "arguments": sys.argv}
        text = json.dumps(request).encode()
        try:
            socket.send_fds(connection, [len(text).to_bytes(_LENGTH)], [0, 1, 2])
            connection.sendall(text)
            begun = connection.recv(1)
        except OSError:
            begun = b""
        if not begun:
            return
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # the fork ends with this process, which has nothing to tell
        status = connection.recv(1)
    if (
        not status
    ):  # killed, as by a machine without memory: what started this process should see the same
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status[0])


def serve(listener: socket.socket) -> None:
    """Fork for each connection, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork is waited for
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        for name in LIBRARIES:
            import_module(name)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(connection)
        connection.close()
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _run(connection: socket.socket) -> None:
    """Run the script that a job asks for, tell the job its exit status, and end."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    size, text = int.from_bytes(head), b""
    while len(text) < size:
        text += connection.recv(size - len(text))
    request = json.loads(text)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.send(b"b")
    threading.Thread(target=_end_with, args=[connection], daemon=True).start()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["arguments"]
    import_module("torch").set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code if isinstance(end.code, str) else "", end="", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status]))
    os._exit(status)


def _end_with(connection: socket.socket) -> None:
    """End this process when the job that asked for it is killed."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
else:
    ask()

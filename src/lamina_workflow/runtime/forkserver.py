"""A process that imports torch and transformers once and forks for each job of a run.

Importing them takes four seconds per job, which was a third of the default study. `start_server`
starts the process together with a run on a machine without a GPU (a fork cannot share what CUDA has
begun). A job that loads a model calls `ask_server` before it imports them (see
`lamina_workflow.runtime.script`). The process then forks, the fork runs the script from its first
line with the job's environment and streams, and the job waits for its end. The process imports no
module of lamina, so a fork runs the code that is on disk. Without such a process, the script
imports the libraries itself.

A request consists of its length, as `_LENGTH_SIZE` bytes sent with the streams of the job, and a
JSON object. The answer is one byte when the fork has begun, then the exit status of the script.
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
from contextlib import suppress
from importlib import import_module
from pathlib import Path

ADDRESS = "LAMINA_FORKSERVER"  # the environment variable with the path of the socket
LIBRARIES = (
    "pyarrow.parquet",
    "scipy.stats",
    "transformers.modeling_utils",
    "lm_eval.models.huggingface",
    "peft",
)
_LENGTH_SIZE = 8
_HAS_BEGUN = b"b"
_STREAMS = [0, 1, 2]
_STDIN = 0


def start_server() -> None:
    """Start the process for the jobs of this one. It imports the libraries when a job asks.

    It ends with the present process, which holds the other end of its standard input. Without it,
    each job imports the libraries itself.
    """
    folder = tempfile.mkdtemp(prefix="lamina-")
    address = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:  # a path of more than 107 bytes, or a file system without sockets
            Path(folder).rmdir()
            return
        os.environ[ADDRESS] = address
        stdin, _held_open = os.pipe()
        listener.listen()
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            start_new_session=True,
            # One thread for libraries that read this on import. A fork tells torch its own number.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=stdin,
            # A fork writes to the streams of its job.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    os.close(stdin)


def ask_server() -> None:
    """Let a fork run the script of this process, and end in the same way as the fork.

    Returns if there is no process to ask.
    """
    address = os.environ.pop(ADDRESS, None)
    if address is None:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        if not _has_begun(connection, address):
            return
        # At Ctrl-C, the fork ends together with this process, which needs no message of its own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        status = connection.recv(1)
    if not status:
        # The fork was killed, for example because memory ran out. The process that started this
        # one should see the same.
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status[0])


def _has_begun(connection: socket.socket, address: str) -> bool:
    """Send the request of this process, and say whether a fork runs its script."""
    request = {"cwd": str(Path.cwd()), "environment": dict(os.environ), "arguments": sys.argv}
    encoded = json.dumps(request).encode()
    try:
        connection.connect(address)
        socket.send_fds(connection, [len(encoded).to_bytes(_LENGTH_SIZE)], _STREAMS)
        connection.sendall(encoded)
        return connection.recv(1) == _HAS_BEGUN
    except OSError:
        return False


def serve_jobs(listener: socket.socket) -> None:
    """Fork for each connection, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork is waited for
    while not _is_over(listener):
        for name in LIBRARIES:
            import_module(name)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run_script(connection)
        connection.close()
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _is_over(listener: socket.socket) -> bool:
    """Wait for a connection or the end of standard input; return whether it is the end."""
    readable, _, _ = select.select([listener.fileno(), _STDIN], [], [])
    return _STDIN in readable


def _run_script(connection: socket.socket) -> None:
    """Run the script that a job requests, send the job its exit status, and end."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH_SIZE, len(_STREAMS))
    request = json.loads(_receive(connection, int.from_bytes(head)))
    for number, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(BrokenPipeError):  # the job was killed; the thread then ends this process
        connection.send(_HAS_BEGUN)
    threading.Thread(target=_end_with_job, args=[connection], daemon=True).start()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["arguments"]
    import_module("torch").set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    status = _exit_status_of(sys.argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status]))
    os._exit(status)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            os._exit(1)  # the job was killed
        received += part
    return received


def _exit_status_of(script: str) -> int:
    """Run a script to its end as Python would: the exit status, and messages on standard error."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, end="", file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end_with_job(connection: socket.socket) -> None:
    """End this process when the job that asked for it is killed."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve_jobs(socket.socket(fileno=int(sys.argv[1])))

"""A parent that has imported the libraries: jobs on a machine without a GPU are its forks and start in milliseconds.

`start` begins a process that waits for clients (`warm_client`) and costs nothing until one comes. It forks a parent for
each kind of libraries and each environment, because libraries read settings at import. The parent imports the libraries
and forks the jobs. A fork has the client's files, folder, arguments and threads, and reads lamina's code afresh. It is
killed, with all that it started, when its client goes; parents die with the process that called `start`. A parent that
has died is replaced. A client runs code as this user, so the socket stands in a folder that only this user can enter,
and the messages of another user's client are not read.
"""

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lamina.runtime.warm_client import STARTED, is_own, receive, send

_BOTH = ("numpy", "pyarrow.parquet", "pyarrow.compute", "yaml", "pydantic", "threadpoolctl")
LIBRARIES = {
    "light": (*_BOTH, "duckdb", "jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg"),
    "heavy": (
        *(*_BOTH, "torch", "torch._dynamo", "transformers.modeling_utils", "safetensors.torch", "peft", "datasets"),
        *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
        *("lm_eval.evaluator", "lm_eval.models.huggingface", "lm_eval.tasks"),
    ),
}
# Threads do not survive a fork, so imports may leave none: of BLAS, and of the allocator in Arrow.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_PR_SET_PDEATHSIG = 1


def start(address: str | Path, records: str | Path) -> "subprocess.Popen[bytes]":
    """Wait for clients at `address` until this process ends, however it ends.

    Parameters
    ----------
    address
        Path of a socket, at most 107 bytes, in a folder of its own.
    records
        Folder for the cost of each parent's imports, in the form of Snakemake's benchmark files.
    """
    folder = Path(address).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    Path(address).unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "lamina.runtime.warm", str(address), str(records)],
        stdin=subprocess.PIPE,  # closes with this process
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        start_new_session=True,
    )
    while not Path(address).exists() and process.poll() is None:
        time.sleep(0.01)
    return process


@dataclass(frozen=True)
class _Job:
    pid: int
    ended: int  # readable once the job has ended
    client: socket.socket
    shared_mb: float  # resident memory at its start, all shared with the parent

    def kill(self) -> None:
        """End the job and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.ended)
        self.client.close()


def _wait(address: str, records: Path) -> None:
    """Hand each client to the parent for its libraries and environment, until standard input closes."""
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o077)
    listener.bind(address)
    os.umask(mask)
    own = Path(address).stat().st_ino
    listener.listen(1024)
    parents: dict[Any, socket.socket] = {}
    started = 0
    selector = selectors.DefaultSelector()
    for source in (sys.stdin, listener):
        selector.register(source, selectors.EVENT_READ)
    while not any(key.fileobj is sys.stdin for key, _ in selector.select()):
        client, _ = listener.accept()
        with client, contextlib.suppress(ConnectionError):
            if not is_own(client):
                continue
            asked: Any = receive(client)[0]
            if asked not in parents or _has_ended(parents[asked]):
                ours, theirs = socket.socketpair()
                if os.fork() == 0:
                    selector.close()
                    for inherited in (listener, client, ours, *parents.values()):
                        inherited.close()
                    kind, settings = asked
                    try:
                        _parent(theirs, LIBRARIES[kind], dict(settings), records / f"{kind}-{started}.jsonl")
                    finally:
                        os._exit(1)  # whatever happened, the fork must not wait here too
                theirs.close()
                parents[asked] = ours
                started += 1
            socket.send_fds(parents[asked], [b"."], [client.fileno()])
    # The next run may listen here already.
    if Path(address).exists() and Path(address).stat().st_ino == own:
        Path(address).unlink()


def _has_ended(parent: socket.socket) -> bool:
    """Whether a parent has closed its side; it never sends anything."""
    return bool(select.select([parent], [], [], 0)[0])


def _parent(control: socket.socket, libraries: Iterable[str], settings: Mapping[str, str], record: Path) -> NoReturn:
    """Import libraries under `settings`, then fork a job for each client that `control` hands over."""
    os.environ.clear()
    os.environ.update({**settings, **_NO_THREADS})
    began = time.monotonic()
    # On some processors it warns, in the middle of the run's lines, of a package that lamina does not use.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    for name in libraries:
        with contextlib.suppress(ImportError):  # the jobs say what is missing
            importlib.import_module(name)
    for name in _NO_THREADS:
        del os.environ[name]
    gc.collect()
    gc.freeze()
    _record(record, time.monotonic() - began)
    jobs: set[_Job] = set()
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            job: _Job | None = key.data
            if job is None:
                handed, files, _, _ = socket.recv_fds(control, 1, 1)
                if not handed:
                    for left in jobs:
                        left.kill()
                    os._exit(0)
                with contextlib.suppress(ConnectionError):
                    job = _fork(socket.socket(fileno=files[0]), [selector, control, *jobs])
                    jobs.add(job)
                    selector.register(job.ended, selectors.EVENT_READ, job)
                    selector.register(job.client, selectors.EVENT_READ, job)
            elif key.fileobj is job.client:
                # A client sends nothing after its request, so it has gone.
                selector.unregister(job.client)
                job.kill()
            else:
                _end(job)
                jobs.remove(job)
                selector.unregister(job.ended)
                with contextlib.suppress(KeyError):  # its client has gone already
                    selector.unregister(job.client)
                job.close()
                break  # other ready events may belong to this job


def _end(job: _Job) -> None:
    """Tell the client how its job ended and what it used."""
    _, status, used = os.wait4(job.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        send(job.client, (code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, job.shared_mb))


def _record(file: Path, seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cost = {"s": seconds, "cpu_time": used.ru_utime + used.ru_stime, "max_rss": used.ru_maxrss / 1024}
    with contextlib.suppress(OSError):  # a full disk: the jobs say so themselves
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"rule_name": "warm_parent", "wildcards": {"libraries": file.stem}, **cost}) + "\n")


def _fork(client: socket.socket, inherited: Iterable[Any]) -> _Job:
    request, files = receive(client, 3)
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):  # both sides do it, so that it is done before either goes on
            os.setpgid(pid, pid)
        with contextlib.suppress(OSError):
            client.sendall(STARTED)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return _Job(pid, os.pidfd_open(pid), client, pages * resource.getpagesize() / 2**20)
    code = 1
    try:
        os.setpgid(0, 0)
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent != os.getppid():
            os._exit(1)
        for handle in (client, *inherited):
            handle.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        code = run(*request)
    finally:
        os._exit(code)


def run(command: list[str], folder: str, threads: dict[str, str], mask: int) -> int:
    """Run a script as the interpreter would, and return the exit code. Its end does not unload the libraries."""
    os.chdir(folder)
    os.umask(mask)
    os.environ.update(threads)
    _use_threads(threads.get("OMP_NUM_THREADS"))
    for name in [name for name in sys.modules if name.split(".")[0] == "lamina"]:
        del sys.modules[name]
    script = str(Path(command[0]).absolute())
    own = [str(Path(script).resolve().parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv, sys.path = command, [*own, *(place for place in sys.path if place not in own)]
    module = types.ModuleType("__main__")
    vars(module).update(__file__=script, __builtins__=builtins)
    sys.modules["__main__"] = module
    code: Any = 0
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        ours = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(ours and ours.tb_next), ours and ours.tb_next)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return int(code) & 0xFF


def _use_threads(number: str | None) -> None:
    """Set the number of threads, as libraries do by the environment when they are imported."""
    count = int(number or os.cpu_count() or 1)
    if "torch" in sys.modules and number:
        sys.modules["torch"].set_num_threads(count)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "threadpoolctl" in sys.modules:
        sys.modules["threadpoolctl"].threadpool_limits(count, "blas")
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].set_cpu_count(count)


if __name__ == "__main__":
    _wait(sys.argv[1], Path(sys.argv[2]))

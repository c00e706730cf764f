"""`python -I -S warm_client.py ADDRESS HEAVY SCRIPT …`: run a script in a fork of a warm parent (lamina.runtime.warm).

If no parent listens or starts the job, this process becomes the interpreter itself. Every job starts it, so it imports
next to nothing. HEAVY is a list of the scripts that need the libraries of models, with commas between.
"""

import marshal
import os
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Settings that a fork can still follow, and settings that no library reads. Any other difference needs another parent.
_LIBRARIES = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "GOTO_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
THREADS = {f"{library}_THREADS" for library in _LIBRARIES}
_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}
STARTED = b"+"  # a parent sends it once a job has begun
_TRIES = 2  # a parent that died is replaced when the next client asks


def send(connection: socket.socket, message: "Any", files: tuple[int, ...] = ()) -> None:
    """Send one message of plain values: its length, along with open files, then its bytes."""
    data = marshal.dumps(message)
    socket.send_fds(connection, [len(data).to_bytes(4, "big")], files)
    connection.sendall(data)


def receive(connection: socket.socket, n_files: int = 0) -> "tuple[Any, list[int]]":
    """The message that `send` sent and its open files.

    Raises
    ------
    ConnectionError
        If the other side has gone.
    """
    size, files, _, _ = socket.recv_fds(connection, 4, n_files)
    data, length = b"", int.from_bytes(size, "big")
    while len(data) < length and (part := connection.recv(length - len(data))):
        data += part
    if not size or len(data) < length:
        raise ConnectionError("the other side has gone")
    return marshal.loads(data), files


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as the same user; nothing is read from it before that is known."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid of 4 bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def main() -> None:
    """Ask for the job and end as it ends: with its exit code, or by the signal that killed it."""
    address, heavy, *command = sys.argv[1:]
    settings = {name: value for name, value in os.environ.items() if name not in _SHELL}
    threads = {name: settings.pop(name) for name in THREADS & settings.keys()}
    kind = "heavy" if command[0].rpartition("/")[2].removesuffix(".py") in heavy.split(",") else "light"
    mask = os.umask(0o022)
    os.umask(mask)
    asked = (kind, tuple(sorted(settings.items())))
    request = (command, os.getcwd(), threads, mask)  # noqa: PTH109
    shell = os.getppid()
    for attempt in range(_TRIES):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except OSError:
            if attempt:
                _gone()  # with the whole run
            break
        if is_own(connection) and _start(connection, asked, request, shell):
            _follow(connection, shell)
    os.execv(sys.executable, [sys.executable, *command])


def _start(connection: socket.socket, asked: "Any", request: "Any", shell: int) -> bool:
    """Ask a parent to start the job; return whether it did."""
    try:
        send(connection, asked)
        send(connection, request, (0, 1, 2))
        _wait(connection, shell)
        return connection.recv(1) == STARTED
    except OSError:
        return False


def _follow(connection: socket.socket, shell: int) -> None:
    _wait(connection, shell)
    try:
        (code, cpu_seconds, max_rss_mb, shared_mb), _ = receive(connection)
    except OSError:
        _gone()
    if code < 0:
        os.kill(os.getpid(), -code)
    if code == 0:
        print(f"cpu_seconds={cpu_seconds:.3f} max_rss_mb={max_rss_mb:.1f} shared_mb={shared_mb:.1f}", file=sys.stderr)
    sys.exit(code)


def _wait(connection: socket.socket, shell: int) -> None:
    """Wait until the parent sends something or has gone. Snakemake kills the shell alone: then the job ends too."""
    while not select.select([connection], [], [], 1.0)[0]:
        if os.getppid() != shell:
            os._exit(1)


def _gone() -> None:
    sys.exit(
        "lamina: the parent of this job has gone, and the job with it: it was killed, or memory ran out. Run again, "
        "with fewer jobs at a time (CORES=1) or LAMINA_WARM=0."
    )


if __name__ == "__main__":
    main()

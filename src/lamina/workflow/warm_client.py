"""`python -I -S warm_client.py ADDRESS HEAVY SCRIPT …`: run a script in a fork of a warm parent (lamina.workflow.warm).

Where no parent listens, this process becomes the interpreter itself. Every job starts it, so it imports next to
nothing. HEAVY names, with commas between, the scripts that need the libraries of models.
"""

import marshal
import os
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What a fork can still follow, and what no library reads. Any other difference asks for a parent of its own.
_LIBRARIES = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "GOTO_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
THREADS = {f"{library}_THREADS" for library in _LIBRARIES}
_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}


def send(connection: socket.socket, message: "Any", files: tuple[int, ...] = ()) -> None:
    """One message of plain values: its length, along with open files, then its bytes."""
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


def main() -> None:
    """Ask for the job and end as it ends: with its exit code, or by the signal that killed it."""
    address, heavy, *command = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        os.execv(sys.executable, [sys.executable, *command])
    settings = {name: value for name, value in os.environ.items() if name not in _SHELL}
    threads = {name: settings.pop(name) for name in THREADS & settings.keys()}
    kind = "heavy" if command[0].rpartition("/")[2].removesuffix(".py") in heavy.split(",") else "light"
    send(connection, (kind, tuple(sorted(settings.items()))))
    mask = os.umask(0o022)
    send(connection, (command, os.getcwd(), threads, mask), (0, 1, 2))  # noqa: PTH109
    shell = os.getppid()
    while not select.select([connection], [], [], 1.0)[0]:
        # Snakemake kills the shell alone; the parent ends a job whose client has gone.
        if os.getppid() != shell:
            os._exit(1)
    try:
        (code, cpu_seconds, max_rss_mb, shared_mb), _ = receive(connection)
    except OSError:
        sys.exit("lamina: the parent of this job has gone, and the job with it. Run again.")
    if code < 0:
        os.kill(os.getpid(), -code)
    if code == 0:
        print(f"cpu_seconds={cpu_seconds:.3f} max_rss_mb={max_rss_mb:.1f} shared_mb={shared_mb:.1f}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

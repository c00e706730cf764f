"""Jobs that are forks of a parent end, print and die as those of an interpreter of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamina.runtime import commands, warm_client
from lamina.stages.gather_jobs import GatherJobs
from lamina.store import parquet as store
from tests.unit.scripts import started

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "in/address"
CLIENT = [sys.executable, "-I", "-S", warm_client.__file__]
SCRIPTS = {
    "speaks": """
        import os, sys
        print(sys.argv[1:], os.getcwd(), os.environ["MINE"], __name__, sys.stdin.read(), sys.path[0])
        print("aside", file=sys.stderr)
    """,
    "leaves": "import sys; sys.exit(3)",
    "explains": "import sys; sys.exit('lamina: no. Write yes.')",
    "fails": """
        def divide():
            return 1 / 0
        divide()
    """,
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "waits": """
        import os, subprocess, sys, time
        helper = subprocess.Popen(["sleep", "60"])
        print(os.getpid(), helper.pid, flush=True)
        time.sleep(60)
    """,
    "counts": """
        import os, numpy, threadpoolctl
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF")
        blas = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
        print(len(os.listdir("/proc/self/task")) - 1, blas, [os.environ.get(name) for name in names])
        assert len(os.listdir(f"/proc/{os.getppid()}/task")) == 1, "threads do not survive a fork"
    """,
    # Asks for the libraries of models, as the scripts do that clients are told of.
    "heavy": """
        import os, sys
        assert {"torch", "transformers.modeling_utils", "lm_eval.evaluator", "peft"} <= sys.modules.keys()
        assert not any(name.startswith("lamina") for name in sys.modules)
        import torch
        from lamina.errors import LaminaError
        assert len(os.listdir(f"/proc/{os.getppid()}/task")) == 1, "threads do not survive a fork"
        print(torch.get_num_threads(), (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item())
    """,
    "computes": "big = bytearray(200_000_000); big[::4096] = b'1' * len(big[::4096]); sum(range(6_000_000))",
}
pytestmark = pytest.mark.skipif(not commands.can_be_warm(), reason="forks of a parent are for Linux without a GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("warm")
    for name, code in SCRIPTS.items():
        (found / f"{name}.py").write_text(textwrap.dedent(code))
    return found


def driver(folder: Path, address: str, records: str = "records") -> "subprocess.Popen[bytes]":
    """A process that starts parents and lives until it is killed."""
    code = f"import time; from lamina.runtime import warm; warm.start({address!r}, {records!r}); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": f"{ROOT}/src"})
    until(lambda: (folder / address).exists())
    return process


def until(reached: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module", autouse=True)
def parent(folder: Path) -> Iterator[None]:
    process = driver(folder, ADDRESS)
    yield
    process.kill()
    process.wait()


def start(folder: Path, script: str, *arguments: str, address: str = ADDRESS, **more: str) -> "subprocess.Popen[str]":
    """A job of `script`; a parent answers at `address` if there is one."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {"PATH": os.environ["PATH"], "MINE": "own", **more}
    return subprocess.Popen(
        [*CLIENT, address, "heavy", f"{script}.py", *arguments], cwd=folder, env=environment, text=True, **pipes
    )


def run(folder: Path, script: str, *arguments: str, **more: str) -> tuple[int, str, str, list[tuple[str, ...]]]:
    """Exit code, output, error without its last line on what was used, and that line."""
    done = start(folder, script, *arguments, **more)
    output, error = done.communicate("given", timeout=60)
    used = r"cpu_seconds=(\S+) max_rss_mb=(\S+) shared_mb=(\S+)\n"
    return done.returncode, output, re.sub(used, "", error), re.findall(used, error)


@pytest.mark.parametrize("script", ["speaks", "leaves", "explains", "fails", "dies"])
def test_a_fork_ends_and_prints_as_an_interpreter_does(folder: Path, script: str) -> None:
    forked, plain = (run(folder, script, "a b", "é", address=address) for address in (ADDRESS, "nobody"))
    assert forked[:3] == plain[:3]
    assert len(forked[3]) == (forked[0] == 0)
    assert not plain[3]
    assert (folder / "records/light-0.jsonl").is_file()


def test_an_environment_is_the_parents_from_its_imports_on(folder: Path) -> None:
    """Libraries read settings as they are imported: another environment is another parent's."""
    before = len(list((folder / "records").iterdir()))
    said = [run(folder, "speaks", MINE=value)[1].split()[2] for value in ("x", "y", "x")]
    assert said == ["x", "y", "x"]
    assert len(list((folder / "records").iterdir())) == before + 2
    cost = json.loads((folder / "records/light-0.jsonl").read_text())
    assert cost["rule_name"] == "warm_parent"
    assert cost["cpu_time"] > 0.05


@pytest.mark.parametrize("number", ["1", "2"])
def test_a_fork_has_its_own_number_of_threads_and_begins_with_none(folder: Path, number: str) -> None:
    code, said, error, _ = run(folder, "counts", OMP_NUM_THREADS=number, OPENBLAS_NUM_THREADS=number)
    assert code == 0, error
    assert said == f"{int(number) - 1} {{{number}}} ['{number}', '{number}', None]\n"


def test_a_fork_has_the_libraries_of_models_and_no_code_of_lamina(folder: Path) -> None:
    for number in ("1", "2"):
        code, said, error, _ = run(folder, "heavy", OMP_NUM_THREADS=number, PYTHONPATH=f"{ROOT}/src")
        assert (code, said) == (0, f"{number} 27000000.0\n"), error


def test_what_a_fork_used_is_said(folder: Path) -> None:
    ((cpu, rss, shared),) = run(folder, "computes")[3]
    assert 0.05 < float(cpu) < 10
    assert float(shared) + 190 < float(rss) < float(shared) + 400


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_and_what_it_started_die_with_its_client(folder: Path, how: signal.Signals) -> None:
    # What a shell starts in the background ignores it, and so does what that starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = start(folder, "waits")
    assert job.stdout is not None
    pids = [int(word) for word in job.stdout.readline().split()]
    assert all(map(alive, pids))
    job.send_signal(how)
    until(lambda: not any(map(alive, pids)))
    job.communicate()


def test_a_job_dies_with_the_shell_that_snakemake_kills(folder: Path) -> None:
    command = " ".join([*CLIENT, ADDRESS, "heavy", "waits.py"])
    shell = subprocess.Popen(["bash", "-c", f"{command}; true"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    pids = [int(word) for word in shell.stdout.readline().split()]
    shell.terminate()
    until(lambda: not any(map(alive, pids)))


def test_parents_and_jobs_die_with_the_driver_and_later_jobs_run_without(folder: Path) -> None:
    process = driver(folder, "of/other")
    job = start(folder, "waits", address="of/other")
    assert job.stdout is not None
    pids = [int(word) for word in job.stdout.readline().split()]
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, pids)))
    _, error = job.communicate(timeout=5)
    assert job.returncode == 1
    assert "the parent of this job has gone" in error
    # A folder with a socket in it cannot be copied.
    until(lambda: not (folder / "of/other").exists())
    code, _, _, used = run(folder, "speaks", address="of/other")
    assert (code, used) == (0, [])


def parents_of(folder: Path, script: str) -> int:
    """The process that a job is a fork of."""
    return int(run(folder, script)[1])


def test_a_parent_that_was_killed_is_replaced(folder: Path) -> None:
    (folder / "tells.py").write_text("import os; print(os.getppid())")
    first = parents_of(folder, "tells")
    assert parents_of(folder, "tells") == first
    os.kill(first, signal.SIGKILL)
    again = run(folder, "tells")
    assert (again[0], len(again[3])) == (0, 1), again
    assert int(again[1]) not in (first, os.getpid())


def test_a_parent_that_cannot_write_its_record_serves_all_the_same(folder: Path) -> None:
    """As on a full disk, whose jobs then say what is wrong."""
    (folder / "blocked").write_text("")
    process = driver(folder, "full/address", "blocked/records")
    code, _, _, used = run(folder, "speaks", address="full/address")
    assert (code, len(used)) == (0, 1)
    process.kill()
    process.wait()


def test_nobody_else_can_connect(folder: Path) -> None:
    """Whoever connects runs code as this user, whatever the mask is that files are made with."""
    mask = os.umask(0)
    try:
        process = driver(folder, "open/address")
    finally:
        os.umask(mask)
    modes = [oct((folder / name).stat().st_mode & 0o777) for name in ("open", "open/address")]
    process.kill()
    process.wait()
    assert modes == ["0o700", "0o700"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process as another user")
def test_another_users_client_is_not_read(folder: Path) -> None:
    """Even one that the folder lets in: it is the kernel that says who asks."""
    place = Path(tempfile.mkdtemp(prefix="warm", dir="/tmp"))
    (place / "planted.py").write_text("import os; open('ran', 'w').write(str(os.getuid()))")
    process = driver(folder, str(place / "in/address"))
    for path, mode in ((place, 0o777), (place / "in", 0o777), (place / "in/address", 0o777)):
        path.chmod(mode)
    asks = f"""
        import os, socket, sys
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        sys.path.insert(0, {str(Path(warm_client.__file__).parent)!r})
        import warm_client
        connection = socket.socket(socket.AF_UNIX)
        connection.connect("in/address")
        try:
            warm_client.send(connection, ("light", ()))
            warm_client.send(connection, (["planted.py"], os.getcwd(), {{}}, 0), (0, 1, 2))
            print(connection.recv(1))
        except OSError as error:
            print(b"")
    """
    try:
        command = [sys.executable, "-c", textwrap.dedent(asks)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "b''\n", done.stderr
        assert not (place / "ran").exists()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(place)


def test_the_table_of_jobs_has_what_forks_used(tmp_path: Path) -> None:
    """Snakemake's record of a fork is that of its client; that of another job is right."""
    for name, said in (("forked", "host=x\ncpu_seconds=2.5 max_rss_mb=300 shared_mb=200\n"), ("plain", "host=x\n")):
        for file in (tmp_path / f"jobs/fit/{name}.jsonl", tmp_path / f"logs/fit/{name}.log"):
            file.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"logs/fit/{name}.log").write_text(said)
        (tmp_path / f"jobs/fit/{name}.jsonl").write_text('{"s": 4, "cpu_time": 0.1, "max_rss": 12}\n')
    done = started(GatherJobs(tables=[], folder="jobs", logs="logs", output="jobs.parquet"), tmp_path)
    assert done.returncode == 0, done.stderr
    rows = store.read(tmp_path / "jobs.parquet").to_pylist()
    assert [(row["cpu_seconds"], row["max_rss_mb"]) for row in rows] == [(2.5, 300), (0.1, 12)]

"""Every test is kept apart from the folder, the environment and the results that it is run in."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

# Variables of the user's runs, caches and schedulers.
FOREIGN_PREFIXES = ("LAMINA_", "HF_", "TRANSFORMERS_", "SNAKEMAKE_", "SLURM_", "SBATCH_")
RESULT_FOLDERS = [ROOT / "results", ROOT / "logs", ROOT / ".snakemake"]
UNCHANGED_FOLDERS = [*RESULT_FOLDERS, ROOT / "config"]
# Events of Python's audit whose first argument is a path.
PATH_EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}

# What the running test reached among the results of the checkout.
reached_paths: list[str] = []


def record_reached_path(event: str, arguments: tuple[Any, ...]) -> None:
    """Hook of Python's audit: remember each use of a path among the results of the checkout."""
    if event not in PATH_EVENTS or not arguments:
        return
    if not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return  # the number of an open file
    path = Path(os.fsdecode(arguments[0])).absolute()
    if any(path == folder or folder in path.parents for folder in RESULT_FOLDERS):
        reached_paths.append(f"{event} {path}")


def remove_foreign_variables() -> None:
    """Do so before huggingface_hub and its like are imported, which read them then."""
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES):
            del os.environ[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_OFFLINE"] = "1"


sys.addaudithook(record_reached_path)
remove_foreign_variables()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        action="store_true",
        help="run the tests that start a SLURM cluster (needs root)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Import modules in an empty folder: those of the library look for files of a run.

    Workers begin in the folder of the process that starts them, so that one stays where it is.
    """
    is_worker = hasattr(config, "workerinput")
    starts_workers = bool(getattr(config.option, "numprocesses", None))
    if starts_workers and not is_worker:
        return
    # Pytest reads these paths only when it collects.
    config.option.ignore = [str(Path(name).absolute()) for name in config.option.ignore or []]
    first_folder = Path.cwd()
    empty_folder = tempfile.TemporaryDirectory(prefix="lamina-tests-")
    os.chdir(empty_folder.name)
    # Cleanups run last in, first out: the folder is left before it is removed.
    config.add_cleanup(empty_folder.cleanup)
    config.add_cleanup(lambda: os.chdir(first_folder))


def read_modification_times() -> dict[str, int]:
    """The time of every file below the folders of results and configurations."""
    times: dict[str, int] = {}
    for folder in UNCHANGED_FOLDERS:
        for file in folder.rglob("*"):
            if file.is_file():
                times[str(file)] = file.stat().st_mtime_ns
    return times


@pytest.fixture(scope="session", autouse=True)
def unchanged_checkout() -> Iterator[None]:
    """Tests and their processes change no results and no configuration of the checkout."""
    times_before = read_modification_times()
    yield
    times_after = read_modification_times()

    files = sorted(times_before.keys() | times_after.keys())
    changed = [file for file in files if times_before.get(file) != times_after.get(file)]
    assert not changed, f"changed in the checkout while the tests ran: {changed}"


@pytest.fixture(autouse=True)
def empty_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Each test works in an empty folder and opens nothing among the results of the checkout."""
    monkeypatch.chdir(tmp_path)
    if "gpu" not in request.keywords:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reached_paths.clear()
    yield
    assert not reached_paths, f"reached among the results of the checkout: {reached_paths}"

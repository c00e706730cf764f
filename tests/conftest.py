"""What holds for every test: it sees nothing of the folder, the environment and the results that it runs beside."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

# Of the user's runs, caches and schedulers.
FOREIGN = ("LAMINA_", "HF_", "TRANSFORMERS_", "SNAKEMAKE_", "SLURM_", "SBATCH_")
RESULTS = tuple(ROOT / name for name in ("results", "logs", ".snakemake"))
WATCHED = (*RESULTS, ROOT / "config")
# Events of Python's audit whose first argument is a path.
EVENTS = frozenset(
    f"os.{name}" for name in ("listdir", "scandir", "mkdir", "rename", "remove", "rmdir")
) | {"open"}

_seen: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS and arguments and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = Path(os.fsdecode(arguments[0])).absolute()
        if any(path == folder or folder in path.parents for folder in RESULTS):
            _seen.append(f"{event} {path}")


sys.addaudithook(_watch)
for _name in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[_name]  # before huggingface_hub and its like are imported, which read them then
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        action="store_true",
        help="run the tests that start a SLURM cluster (needs root)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Modules are imported in an empty folder; those of the library look for files of a run as they are imported.

    Workers begin where the process that starts them stands, so that one stays.
    """
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        # Pytest reads these as they are told once it collects.
        config.option.ignore = [str(Path(name).absolute()) for name in config.option.ignore or []]
        here, empty = Path.cwd(), tempfile.TemporaryDirectory(prefix="lamina-tests-")
        os.chdir(empty.name)
        config.add_cleanup(empty.cleanup)
        config.add_cleanup(lambda: os.chdir(here))


def _state() -> dict[str, int]:
    """Every file below the folders of results and configurations, with its time."""
    files = (path for folder in WATCHED for path in folder.rglob("*") if path.is_file())
    return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.fixture(scope="session", autouse=True)
def checkout_as_it_was() -> Iterator[None]:
    """Tests, and the processes that they start, change no results and no configuration of the checkout."""
    before = _state()
    yield
    after = _state()
    changed = sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
    assert not changed, f"changed in the checkout while the tests ran: {changed}"


@pytest.fixture(autouse=True)
def folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Each test works in an empty folder and opens nothing among the results of the checkout."""
    monkeypatch.chdir(tmp_path)
    if "gpu" not in request.keywords:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _seen.clear()
    yield
    assert not _seen, f"reached among the results of the checkout: {_seen}"

"""Running a script of the workflow as its rule does: a job on standard input, or in a file."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from lamina.stages.described import Place

from lamina import errors, modules
from lamina.config.configuration import Configuration
from lamina.stages.job import Job

ROOT = Path(__file__).parents[2]


def place(**names: object) -> Place:
    """Wildcards of a job."""
    return Place({name: str(value) for name, value in names.items()})


def described(kind: type[Job], config: Configuration, **names: object) -> Job:
    """The job of a rule for its wildcards."""
    return kind.of(config, place(**names))


def file(job: Job) -> Path:
    return ROOT / f"workflow/scripts/{job.rule()}.py"


def started(job: Job, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """The script in a process of its own, its job on standard input."""
    command, environment = [sys.executable, str(file(job))], os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, input=job.told(), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(job: Job, folder: Path = ROOT) -> None:
    """The script in this process, its job in a file."""
    before, where, declared = sys.argv, Path.cwd(), modules._declared
    with tempfile.TemporaryDirectory() as name:
        told = Path(name) / "job.json"
        # Without the digest of its code: a test's own method is no module of the library.
        told.write_text(json.dumps({"job": job._plain()}))
        sys.argv = [job.rule(), str(told)]
        os.chdir(folder)
        errors._checks.clear()  # of what a test did before, outside a job
        try:
            runpy.run_path(str(file(job)), run_name="__main__")
        finally:
            sys.argv, modules._declared = before, declared
            os.chdir(where)


def plain(job: Job) -> dict[str, object]:
    """What the script is told, as JSON has it."""
    return dict(json.loads(job.told())["job"])

"""Running a script of the workflow as its rule does, with a stand-in for the object that Snakemake gives it."""

import json
import os
import runpy
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lamina_workflow.stages.job import READ, WRITTEN, Job, Wildcards
from tests import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def place(**names: object) -> Wildcards:
    return Wildcards({name: str(value) for name, value in names.items()})


def script(job: Job) -> str:
    return str(ROOT / f"workflow/scripts/{job.rule()}.py")


def given(job: Job) -> dict[str, Any]:
    """The files and params that a rule gives the script of a job, without a fingerprint: a test's method has none."""

    read, written = (
        {name: getattr(job, name) for name in job._marked(mark)} for mark in (READ, WRITTEN)
    )
    read = {
        name: list(value.values()) if isinstance(value, dict) else value
        for name, value in read.items()
    }
    return {"input": read, "output": written, "params": {"options": job.options(), "code": ""}}


def stand_in(input: Any, output: Any, params: Any) -> SimpleNamespace:
    """An object like Snakemake's, without wildcards, a log and resources."""
    files = {"input": SimpleNamespace(**input), "output": SimpleNamespace(**output)}
    return SimpleNamespace(**files, params=Wildcards(params), wildcards={}, log=[], resources={})


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", __name__, script(job), json.dumps(given(job))]


def started(job: Job, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """The script in a process of its own, to its end."""
    return subprocess.run(
        command(job), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def run(job: Job, folder: Path = ROOT) -> None:
    """The script in this process."""
    with chdir(folder):
        runpy.run_path(script(job), {"snakemake": stand_in(**given(job))}, "__main__")


if __name__ == "__main__":
    runpy.run_path(sys.argv[1], {"snakemake": stand_in(**json.loads(sys.argv[2]))}, "__main__")

"""Running a script of the workflow with a stand-in for the object that Snakemake gives it."""

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


def make_wildcards(**values: object) -> Wildcards:
    """Wildcards as Snakemake has them: strings."""
    return Wildcards({name: str(value) for name, value in values.items()})


def script_path(job: Job) -> str:
    return str(ROOT / f"workflow/scripts/{job.rule()}.py")


def script_arguments(job: Job) -> dict[str, Any]:
    """The `input`, `output` and `params` that a rule gives its script.

    Without a fingerprint of the code: a method that only a test has needs none.
    """
    input_files = {}
    output_files = {}
    for name, field in type(job).model_fields.items():
        value = getattr(job, name)
        if READ in field.metadata:
            input_files[name] = list(value.values()) if isinstance(value, dict) else value
        if WRITTEN in field.metadata:
            output_files[name] = value
    params = {"options": job.options(), "code": ""}
    return {"input": input_files, "output": output_files, "params": params}


def snakemake_stand_in(input: Any, output: Any, params: Any) -> SimpleNamespace:
    """An object like Snakemake's, with no wildcards, log or resources."""
    return SimpleNamespace(
        input=SimpleNamespace(**input),
        output=SimpleNamespace(**output),
        params=Wildcards(params),
        wildcards={},
        log=[],
        resources={},
    )


def script_command(job: Job) -> list[str]:
    """The command line that runs the script of a job."""
    return [sys.executable, "-m", __name__, script_path(job), json.dumps(script_arguments(job))]


def run_in_subprocess(job: Job, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        script_command(job),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def run_in_process(job: Job, folder: Path = ROOT) -> None:
    run_script(script_path(job), script_arguments(job), folder)


def run_script(path: str, arguments: dict[str, Any], folder: Path = Path()) -> None:
    with chdir(folder):
        runpy.run_path(path, {"snakemake": snakemake_stand_in(**arguments)}, "__main__")


if __name__ == "__main__":
    run_script(sys.argv[1], json.loads(sys.argv[2]))

"""Write the facts that change from run to run: versions, commit, machine, wall time."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina.version import VERSION
from lamina_workflow.stages.report import CollectFacts

PACKAGES = (
    "snakemake",
    "torch",
    "transformers",
    "lm_eval",
    "peft",
    "datasets",
    "pyarrow",
    "duckdb",
)


def describe_commit() -> str:
    """The commit of the workflow, with a mark if files differ from it.

    Empty outside a git checkout.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parent
    described = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return described.stdout.strip()


if __name__ == "__main__":
    with run_script(snakemake):
        job = CollectFacts.read(snakemake)
        now = time.time()
        started_file = Path(job.started)
        started = started_file.stat().st_mtime if started_file.exists() else now
        facts = {
            "lamina": VERSION,
            "commit": describe_commit(),
            "configuration": job.files,
            "seed": job.seed,
            "finished": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            "seconds_of_last_run": round(now - started, 1),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        }
        parquet.write_json(job.output, facts, job.description)

"""Write the facts of a run that change from run to run: versions, commit, machine, wall time."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lamina.runtime.script import running
from lamina.stages.report import CollectFacts
from lamina.store import parquet as store
from lamina.version import VERSION

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


def commit() -> str:
    """The commit of the workflow, marked where files differ from it; empty outside a git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    with running(snakemake):
        job = CollectFacts.read(snakemake)
        started, now = Path(job.started), time.time()
        began = started.stat().st_mtime if started.exists() else now
        facts = {
            "lamina": VERSION,
            "commit": commit(),
            "configuration": job.files,
            "seed": job.seed,
            "finished": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            "wall_seconds": round(now - began, 1),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        }
        store.write_json(job.output, facts)

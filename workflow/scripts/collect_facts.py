"""Write the facts of a run that change from run to run: versions, commit, machine, wall time."""

import argparse
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lamina.errors import explained
from lamina.tables import store
from lamina.version import VERSION

PACKAGES = ("snakemake", "torch", "transformers", "lm_eval", "peft", "datasets", "pyarrow", "duckdb")


def commit() -> str:
    """The commit of the workflow, marked where files differ from it; empty outside a git checkout."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--config", required=True, help="configuration files of the run")
    parser.add_argument("--started", required=True, type=Path, help="a file touched when the run began")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        now = time.time()
        began = args.started.stat().st_mtime if args.started.exists() else now
        facts = {
            "lamina": VERSION,
            "commit": commit(),
            "configuration": args.config,
            "seed": args.seed,
            "finished": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            "wall_seconds": round(now - began, 1),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        }
        store.write_text(args.output, json.dumps(facts, indent=2) + "\n")

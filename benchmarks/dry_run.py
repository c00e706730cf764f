"""Seconds that a dry run of a large configuration takes, per 10,000 jobs: by the clock, and of the processor.

    python benchmarks/dry_run.py [--json] [--models 8] [--repeats 3]

8 models (71 are 100,000 jobs), 10 calibrations, 6 selectors, 8 sizes and 4 repairs. All models are the embedded one
by other names, for a dry run reads no weight.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CONFIG: dict[str, Any] = {
    "models": {},
    "calibrations": {
        f"text{i}": {"text": "microworld_corpus", "documents": f"{100 * i}:{100 * i + 100}"}
        for i in range(10)
    },
    "selectors": {
        "accuracy": {"metric": "accuracy"},
        "cosine": {"metric": "cosine"},
        "perplexity": {"metric": "perplexity"},
        "once": {"metric": "accuracy", "strategy": "one_shot"},
        "angular": {"metric": "angular", "strategy": "block"},
        "random": {"strategy": "random"},
    },
    "repairs": {
        "ghost": {"method": "ghost"},
        "affine": {"method": "ghost", "bias": True},
        "narrow": {"method": "ghost", "rank": 8},
    },
    "benchmarks": {"tasks": {"microworld_facts": {}, "microworld_recall": {}}},
    "studies": {
        "all": {
            "calibrations": [f"text{i}" for i in range(10)],
            "selectors": ["accuracy", "cosine", "perplexity", "once", "angular", "random"],
            "removed": [1, 2, 3, 4, 5, 6, 7, 8],
            "repairs": ["none", "ghost", "affine", "narrow"],
        }
    },
}


def dry_run(folder: Path, *quiet: str) -> tuple[float, float, str]:
    """Seconds by the clock and of the processor, and output, of one dry run."""
    config = folder / "large.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(folder / "workflow/Snakefile"),
        "--configfile",
        str(config),
    ]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--cores", "2", "--dry-run", "--quiet", *quiet],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, worked, done.stdout + done.stderr


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", type=int, default=8)
    args = parser.parse_args()
    CONFIG["models"] = {
        f"model{i}": {"source": "resources/reference", "dtype": "float32"}
        for i in range(args.models)
    }
    CONFIG["studies"]["all"]["models"] = list(CONFIG["models"])
    with tempfile.TemporaryDirectory() as name:
        for part in (
            "rules",
            "workflow",
            "src",
            "sql",
            "config",
            "envs",
            "resources",
            "requirements.lock",
        ):
            (Path(name) / part).symlink_to(ROOT / part)
        # Without a word after it, --quiet builds the graph and says nothing; with `rules` it counts jobs and reasons.
        graph = statistics.median(dry_run(Path(name))[0] for _ in range(args.repeats))
        runs = [dry_run(Path(name), "rules") for _ in range(args.repeats)]
    counted, worked = (statistics.median(run[at] for run in runs) for at in (0, 1))
    jobs = int(re.findall(r"^total +(\d+)", runs[0][2], re.MULTILINE)[0])
    found = {
        "jobs": jobs,
        "graph_seconds_per_10000": round(graph / jobs * 10000, 2),
        "counted_seconds_per_10000": round(counted / jobs * 10000, 2),
        "processor_seconds_per_10000": round(worked / jobs * 10000, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }
    text = "{jobs} jobs; per 10,000 the graph {graph_seconds_per_10000} s, with counts {counted_seconds_per_10000} s"
    text += ", of the processor {processor_seconds_per_10000} s; {peak_mb} MB"
    print(json.dumps(found) if args.json else text.format(**found))

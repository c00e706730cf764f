"""Gather the cost of every job from the records of Snakemake."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.runtime.script import running
from lamina.stages.report import GatherJobs
from lamina.store import parquet as store

LIBRARIES_MB = 300  # at least what a job holds that has imported torch


def jobs(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows from the benchmark files that Snakemake left under `folder`.

    Jobs of earlier runs keep their files, so that a rerun of a part still gives the cost of the whole.
    """
    for path in sorted(folder.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # half a line of a killed job: it is only a record of cost
            if not isinstance(record, dict):
                continue
            resources = record.get("resources") or {}
            wildcards = record.get("wildcards") or {}
            # Of a job that a fork ran (lamina.runtime.forkserver), Snakemake measured a process that waited.
            waited = (number(record.get("max_rss")) or LIBRARIES_MB) < LIBRARIES_MB
            yield {
                # Without --benchmark-extended a record does not name its rule, but its path does.
                "rule": record.get("rule_name")
                or path.relative_to(folder).with_suffix("").parts[0],
                "wildcards": ", ".join(
                    f"{name}={value}" for name, value in sorted(wildcards.items())
                ),
                "seconds": number(record.get("s")),
                "cpu_seconds": None if waited else number(record.get("cpu_time")),
                "max_rss_mb": None if waited else number(record.get("max_rss")),
                "device": "gpu" if resources.get("gpu") else "cpu",
            }


def number(text: Any) -> float | None:
    """A measurement of Snakemake; None for NA or -, which it writes for jobs that ended before its first look."""
    return None if text in (None, "NA", "-") else float(text)


if __name__ == "__main__":
    with running(snakemake):
        job = GatherJobs.read(snakemake)
        store.write(job.output, store.from_rows("jobs", jobs(Path("results/jobs"))))

"""Gather the cost of every job from the records of Snakemake and of the jobs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.errors import explained
from lamina.stages.gather_jobs import GatherJobs
from lamina.store import parquet as store

# The last line in the log of a job that succeeded (lamina.runtime.warm_client).
_USED = re.compile(r"^cpu_seconds=(\S+) max_rss_mb=(\S+)", re.MULTILINE)


def jobs(folder: Path, logs: Path) -> Iterator[dict[str, Any]]:
    """Rows from the benchmark files that Snakemake left under `folder`, and from the lines of forks in `logs`.

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
            log = logs / path.relative_to(folder).with_suffix(".log")
            used = _USED.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
            wildcards = record.get("wildcards") or {}
            yield {
                # Without --benchmark-extended a record does not name its rule, but its path does.
                "rule": record.get("rule_name") or path.relative_to(folder).with_suffix("").parts[0],
                "wildcards": ", ".join(f"{name}={value}" for name, value in sorted(wildcards.items())),
                "seconds": number(record.get("s")),
                # Snakemake does not see the fork of another process.
                "cpu_seconds": sum(float(cpu) for cpu, _ in used) if used else number(record.get("cpu_time")),
                "max_rss_mb": max(float(rss) for _, rss in used) if used else number(record.get("max_rss")),
                "device": "gpu" if resources.get("gpu") else "cpu",
            }


def number(text: Any) -> float | None:
    """A measurement of Snakemake; None for NA or -, which it writes for jobs that ended before its first look."""
    return None if text in (None, "NA", "-") else float(text)


if __name__ == "__main__":
    with explained():
        job = GatherJobs.read()
        store.write(job.output, store.from_rows("jobs", jobs(Path(job.folder), Path(job.logs))))

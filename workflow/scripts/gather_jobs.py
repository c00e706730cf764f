"""Gather the cost of every job from Snakemake's records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.store import parquet
from lamina_workflow.stages.report import GatherJobs

RECORDS = Path("results/jobs")
LIBRARIES_MB = 300  # the least memory of a job that has imported torch


def job_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows from the benchmark files that Snakemake left under `folder`.

    Jobs of earlier runs keep their files, so that a partial rerun still gives the cost of the
    whole.
    """
    for path in sorted(folder.rglob("*.jsonl")):
        # Without --benchmark-extended, a record does not name its rule, but its path does.
        rule_of_path = path.relative_to(folder).with_suffix("").parts[0]
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            record = _parse(line)
            if record is not None:
                yield _row(record, rule_of_path)


def _parse(line: str) -> dict[str, Any] | None:
    """A record of Snakemake; None for a line that a killed job left incomplete."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _row(record: dict[str, Any], rule_of_path: str) -> dict[str, Any]:
    wildcards = record.get("wildcards") or {}
    max_rss_mb = _number(record.get("max_rss"))
    # If a fork ran the job (lamina_workflow.runtime.forkserver), Snakemake measured a process that
    # only waited.
    was_forked = (max_rss_mb or LIBRARIES_MB) < LIBRARIES_MB
    return {
        "rule": record.get("rule_name") or rule_of_path,
        "wildcards": ", ".join(f"{name}={value}" for name, value in sorted(wildcards.items())),
        "seconds": _number(record.get("s")),
        "cpu_seconds": None if was_forked else _number(record.get("cpu_time")),
        "max_rss_mb": None if was_forked else max_rss_mb,
    }


def _number(text: Any) -> float | None:
    """A measurement of Snakemake.

    None for NA or -, which it writes for jobs that ended before its first measurement.
    """
    return None if text in (None, "NA", "-") else float(text)


if __name__ == "__main__":
    with run_script(snakemake):
        job = GatherJobs.read(snakemake)
        parquet.write_table(
            job.output, parquet.from_rows("jobs", job_rows(RECORDS)), job.provenance
        )

"""Gather one table of a run from the files that hold its parts."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lamina.errors import LaminaError, explained
from lamina.tables import store
from lamina.tables.columns import SELECTION
from lamina.variant import DONOR


def models(paths: Sequence[Path], groups: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from manifests `models/{model}/manifest.json`."""
    columns = store.schema("models").names
    for path in paths:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        yield {name: manifest.get(name) for name in columns} | {"model": path.parent.name}


def calibrations(paths: Sequence[Path], groups: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from the metadata of samples `calibrations/{model}/{calibration}.parquet`."""
    columns = store.schema("calibrations").names
    for path in paths:
        metadata = pq.read_schema(path).metadata or {}
        if b"lamina.calibration" not in metadata:
            raise LaminaError(f"{path} is not a calibration of this version of lamina. Delete the file and run again.")
        described = json.loads(metadata[b"lamina.calibration"])
        names = {"model": path.parent.name, "calibration": path.stem, "replicate_of": groups.get(path.stem)}
        yield {name: described.get(name) for name in columns} | names


def plans(paths: Sequence[Path], groups: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from plans; one row with a null unit for a refused plan."""
    for path in paths:
        plan = json.loads(path.read_text(encoding="utf-8"))
        keys = {name: plan[name] for name in SELECTION} | {"replicate_of": groups.get(plan["selector"])}
        if plan["refused"]:
            yield keys | {"refused": plan["refused"]}
        units = plan["units"]
        nothing = [None] * len(units)
        columns = (plan["scores"] or nothing, plan["accuracy_before"] or nothing, plan["accuracy_after"] or nothing)
        for position, (unit, score, before, after) in enumerate(zip(units, *columns, strict=True), start=1):
            measured = {"score": score, "accuracy_before": before, "accuracy_after": after}
            donor = str(unit).partition(f".{DONOR}")[2] or None
            yield keys | {"unit": str(unit), "donor": donor, "position": position} | measured


def shared_documents(paths: Sequence[Path], groups: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from the checks `overlap/{model}/{calibration}/{task}.json`."""
    for path in paths:
        yield {"model": path.parents[1].name} | json.loads(path.read_text(encoding="utf-8"))


def jobs(folder: Path, logs: Path) -> Iterator[dict[str, Any]]:
    """Rows from the benchmark files that Snakemake left under `folder`, and from what forks of a parent say in `logs`.

    Jobs of earlier runs keep their files, so that a rerun of a part still tells the cost of the whole.
    """
    for path in sorted(folder.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            resources = record.get("resources") or {}
            log = logs / path.relative_to(folder).with_suffix(".log")
            used = _USED.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
            wildcards = record.get("wildcards") or {}
            yield {
                # Without --benchmark-extended a record does not say whose it is, its path does.
                "rule": record.get("rule_name") or path.relative_to(folder).with_suffix("").parts[0],
                "wildcards": ", ".join(f"{name}={value}" for name, value in sorted(wildcards.items())),
                "seconds": number(record.get("s")),
                # Snakemake does not see a fork of another process.
                "cpu_seconds": sum(float(cpu) for cpu, _ in used) if used else number(record.get("cpu_time")),
                "max_rss_mb": max(float(rss) for _, rss in used) if used else number(record.get("max_rss")),
                "device": "gpu" if resources.get("gpu") else "cpu",
            }


def number(text: Any) -> float | None:
    """A measurement of Snakemake's; it writes NA (or -) for jobs that ended before it first looked."""
    return None if text in (None, "NA", "-") else float(text)


# The last line in the log of a job that succeeded (lamina.workflow.warm_client).
_USED = re.compile(r"^cpu_seconds=(\S+) max_rss_mb=(\S+)", re.MULTILINE)
READERS = {"models": models, "calibrations": calibrations, "plans": plans, "shared_documents": shared_documents}


def gather(
    table: str, paths: Sequence[Path], groups: Mapping[str, str], folder: Path | None, logs: Path = Path("logs")
) -> pa.Table:
    """The whole of `table` from its parts; `groups` are the labels of replicates by name."""
    if table == "jobs":
        return store.from_rows(table, jobs(folder, logs) if folder else [])
    if table in READERS:
        return store.from_rows(table, READERS[table](paths, groups))
    return store.gather(table, paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--table", choices=store.TABLES, required=True)
    parser.add_argument("--input", type=Path, nargs="*", default=[], help="parts; @FILE reads arguments, one a line")
    parser.add_argument("--folder", type=Path, help="Snakemake's benchmark files (jobs only)")
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="logs of the same names (jobs only)")
    parser.add_argument("--groups", type=json.loads, default={}, help="labels of replicates by name, as JSON")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    given = (arguments.table, arguments.input, arguments.groups, arguments.folder, arguments.logs)
    store.write(arguments.output, gather(*given))


if __name__ == "__main__":
    with explained():
        main()

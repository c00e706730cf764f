"""Gather one table of a run from the files that hold its parts."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lamina_workflow.runtime.script import run_script

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.models.units import is_removal, parse_edit
from lamina.store import checksum, parquet
from lamina.tables.columns import SELECTION_KEYS
from lamina.variant import Variant
from lamina_workflow.stages.report import GatherTable

Rows = Iterator[dict[str, Any]]


def model_rows(job: GatherTable) -> Rows:
    """Rows from manifests `models/{model}/manifest.json`."""
    columns = parquet.schema_of("models").names
    for path in map(Path, job.parts):
        manifest = checksum.read_json(path)
        row = {name: manifest.get(name) for name in columns}
        row["model"] = path.parent.name
        row["dtype"] = manifest["loaded_dtype"]
        yield row


def layer_rows(job: GatherTable) -> Rows:
    """A row for each layer in the manifests."""
    for path in map(Path, job.parts):
        for index, layer in enumerate(checksum.read_json(path)["layers"]):
            yield {"model": path.parent.name, "layer": index, **layer}


def handle_rows(job: GatherTable) -> Rows:
    """A row for each variant of the studies."""
    for handle, name in job.handles.items():
        yield {"handle": handle, **asdict(Variant.parse(name))}


def gate_rows(job: GatherTable) -> Rows:
    """A row for each gate of each variant."""
    yield from job.gates


def calibration_rows(job: GatherTable) -> Rows:
    """Rows from the metadata of samples `calibrations/{model}/{calibration}.parquet`."""
    columns = parquet.schema_of("calibrations").names
    for path in map(Path, job.parts):
        metadata = parquet.read_metadata(path)
        if "calibration" not in metadata:
            raise LaminaError(
                f"{path} is not a calibration of this version of lamina. Delete the file and run "
                "again."
            )
        described = json.loads(metadata["calibration"])
        calibration = path.stem
        yield {name: described.get(name) for name in columns} | {
            "model": path.parent.name,
            "calibration": calibration,
            "replicate_of": job.groups.get(calibration),
            "choice_score": job.scores.get(calibration, "acc_norm"),
        }


def plan_rows(job: GatherTable) -> Rows:
    """Rows from plans; one row with a null unit for a refused plan."""
    for path in map(Path, job.parts):
        plan = checksum.read_json(path)
        keys = {name: plan[name] for name in SELECTION_KEYS}
        keys["replicate_of"] = job.groups.get(plan["selector"])
        keys["repair"] = plan["choice"].get("repair") or job.repairs.get(plan["selector"], "none")
        if plan["refused"]:
            yield keys | {"refused": plan["refused"]}
        not_measured = [None] * len(plan["units"])
        units = zip(
            plan["units"],
            plan["scores"] or not_measured,
            plan["accuracy_before"] or not_measured,
            plan["accuracy_after"] or not_measured,
            strict=True,
        )
        for position, (unit, score, before, after) in enumerate(units, start=1):
            yield keys | {
                "unit": str(unit),
                "edit": None if is_removal(unit) else type(parse_edit(unit)).__name__.lower(),
                "position": position,
                "score": score,
                "accuracy_before": before,
                "accuracy_after": after,
            }


def shared_document_rows(job: GatherTable) -> Rows:
    """Rows from the checks `overlap/{model}/{calibration}/{task}.json`."""
    for path in map(Path, job.parts):
        yield {"model": path.parents[1].name} | checksum.read_json(path)


# Readers of tables whose parts are not Parquet files of the table.
READERS = {
    "models": model_rows,
    "layer_sizes": layer_rows,
    "handles": handle_rows,
    "gates": gate_rows,
    "calibrations": calibration_rows,
    "plans": plan_rows,
    "shared_documents": shared_document_rows,
}


def gather(job: GatherTable) -> pa.Table:
    """The whole table of a job from its parts."""
    if job.table in READERS:
        return parquet.from_rows(job.table, READERS[job.table](job))
    return parquet.gather_tables(job.table, job.parts)


if __name__ == "__main__":
    with run_script(snakemake):
        job = GatherTable.read(snakemake)
        parquet.write_table(job.output, gather(job), job.provenance)

"""Gather one table of a run from the files that hold its parts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.models.units import replacement
from lamina.runtime.script import running
from lamina.stages.report import GatherTable
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.tables.columns import SELECTION_KEYS


def models(paths: Sequence[Path], *_: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from manifests `models/{model}/manifest.json`."""
    columns = store.schema("models").names
    for path in paths:
        manifest = seal.read_json(path)
        yield {name: manifest.get(name) for name in columns} | {"model": path.parent.name}


def calibrations(
    paths: Sequence[Path], groups: Mapping[str, str], scores: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Rows from the metadata of samples `calibrations/{model}/{calibration}.parquet`."""
    columns = store.schema("calibrations").names
    for path in paths:
        metadata = store.metadata(path)
        if "calibration" not in metadata:
            raise LaminaError(
                f"{path} is not a calibration of this version of lamina. Delete the file and run again."
            )
        described = json.loads(metadata["calibration"])
        names = {
            "model": path.parent.name,
            "calibration": path.stem,
            "replicate_of": groups.get(path.stem),
        }
        names["choice_score"] = scores.get(path.stem, "acc_norm")
        yield {name: described.get(name) for name in columns} | names


def plans(
    paths: Sequence[Path], groups: Mapping[str, str], *_: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Rows from plans; one row with a null unit for a refused plan."""
    for path in paths:
        plan = seal.read_json(path)
        keys = {name: plan[name] for name in SELECTION_KEYS} | {
            "replicate_of": groups.get(plan["selector"])
        }
        if plan["refused"]:
            yield keys | {"refused": plan["refused"]}
        units = plan["units"]
        nothing = [None] * len(units)
        columns = (
            plan["scores"] or nothing,
            plan["accuracy_before"] or nothing,
            plan["accuracy_after"] or nothing,
        )
        for position, (unit, score, before, after) in enumerate(
            zip(units, *columns, strict=True), start=1
        ):
            measured = {"score": score, "accuracy_before": before, "accuracy_after": after}
            donor = replacement(str(unit)) or None
            yield keys | {"unit": str(unit), "donor": donor, "position": position} | measured


def shared_documents(paths: Sequence[Path], *_: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows from the checks `overlap/{model}/{calibration}/{task}.json`."""
    for path in paths:
        yield {"model": path.parents[1].name} | seal.read_json(path)


READERS = {
    "models": models,
    "calibrations": calibrations,
    "plans": plans,
    "shared_documents": shared_documents,
}


def gather(
    table: str, paths: Sequence[Path], groups: Mapping[str, str], scores: Mapping[str, str]
) -> pa.Table:
    """The whole of `table` from its parts; `groups` and `scores` are those of the job, by name."""
    if table in READERS:
        return store.from_rows(table, READERS[table](paths, groups, scores))
    return store.gather(table, paths)


if __name__ == "__main__":
    with running(snakemake):
        job = GatherTable.read(snakemake)
        store.write(
            job.output,
            gather(job.table, [Path(part) for part in job.parts], job.groups, job.scores),
        )

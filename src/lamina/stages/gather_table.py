"""Rule gather_table: gather one table of a run from the files that hold its parts."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.errors import LaminaError
from lamina.stages import files
from lamina.stages.job import READ, Job
from lamina.study import paths
from lamina.study import requests as studies


class GatherTable(Job):
    """One table from its `parts`. `groups` has the labels of entries that are replicates, `scores` the score of
    calibrations that do not compare choices by acc_norm.
    """

    OUTPUTS = {"output": paths.table("{table}")}

    table: str
    parts: Annotated[list[str], READ] = []
    groups: dict[str, str] = {}
    scores: dict[str, str] = {}
    output: str

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        sections: dict[str, dict[str, Any]] = {"calibrations": config.calibrations, "plans": config.selectors}
        groups = {name: entry.group for name, entry in sections.get(w.table, {}).items() if entry.group}
        entries = config.calibrations if w.table == "calibrations" else {}
        scores = {name: str(entry.score) for name, entry in entries.items() if entry.score != "acc_norm"}
        return cls(table=w.table, parts=parts(config, w.table), groups=groups, scores=scores, **cls.written(w))

    @property
    def described_by(self) -> tuple[str, ...]:
        return schemas([self.table])


def schemas(tables: Iterable[str]) -> tuple[str, ...]:
    """The modules that describe and write tables. Other code digests leave them aside."""
    return ("lamina.tables.columns", "lamina.store.parquet", *(f"lamina.tables.{table}" for table in sorted(tables)))


def parts(config: Configuration, table: str) -> list[str]:
    """The files that one table is gathered from: exactly those that the configuration asks for."""
    match table:
        case "models":
            studied = {model for study in config.studies.values() for model in study.models}
            # A donor is no model of the report unless a study lists it.
            return [paths.manifest(model) for model in config.models if model in studied or model not in config.donors]
        case "calibrations":
            return [paths.calibration(*place) for place in studies.calibrations(config)]
        case "shared_documents":
            return _overlaps(config)
        case "activations":
            return [paths.activations(*place) for place in studies.captures(config)]
        case "sweeps" | "relevance":
            path_of = paths.sweep if table == "sweeps" else paths.relevance
            return [path_of("/".join(place), removed) for *place, removed in studies.sweeps(config)]
        case "plans":
            return [paths.plan("/".join(place), removed) for *place, removed in studies.plans(config)]
        case "searches":
            return [paths.search("/".join(place)) for place in studies.searches(config)]
        case "patches":
            fitted = {(v.key, v.repair) for v in studies.variants(config) if v.repair != "none"}
            return [paths.patch_table(*place) for place in sorted(fitted)]
        case "training":
            healed = {paths.variant_files(v).adapter for v in studies.variants(config)}
            return sorted(paths.training(folder) for folder in healed if folder)
        case "benchmarks":
            written = [paths.generation(*block) for block in studies.generation_blocks(config)]
            return [paths.benchmark(*block) for block in studies.benchmark_blocks(config)] + written
        case "benchmark_samples":
            written = [paths.generation_samples(*block) for block in studies.generation_blocks(config)]
            return [paths.benchmark_samples(*block) for block in studies.benchmark_blocks(config)] + written
        case "efficiency":
            return [paths.efficiency(model) for model in config.models if studies.efficiency_variants(config, model)]
        case "diagnoses":
            return [paths.diagnosis(*place) for place in studies.diagnoses(config)]
    raise LaminaError(f"tables: nothing says what '{table}' is gathered from. Add it to lamina.stages.gather_table.")


def _overlaps(config: Configuration) -> list[str]:
    """Every check of a calibration against a benchmark that the studies' jobs wait for."""
    gates: set[str] = set()
    for model, calibration, task, block in studies.benchmark_blocks(config):
        if calibration != "none":
            listed = studies.block_variants(config, model, calibration, task, block)
            gates.update(files.gates(config, model, calibration, task, listed))
    return sorted(gates)

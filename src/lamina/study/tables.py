"""What each gathered table is made from: exactly the files that the configuration asks for."""

from lamina.config.configuration import Configuration
from lamina.errors import LaminaError
from lamina.study import paths
from lamina.study import requests as studies
from lamina.study.sweeps import sweeps


def parts(config: Configuration, table: str) -> list[str]:
    """The files that one table is gathered from: exactly those that the configuration asks for.

    Raises LaminaError if nothing says what the table is gathered from.
    """
    match table:
        case "models":
            studied = {model for study in config.studies.values() for model in study.models}
            return [
                paths.manifest(model)
                for model in config.models
                if model in studied or model not in config.donors
            ]
        case "calibrations":
            return [paths.calibration(*place) for place in studies.calibrations(config)]
        case "shared_documents":
            return _overlaps(config)
        case "activations":
            return [paths.activations(*place) for place in studies.captures(config)]
        case "sweeps" | "relevance":
            path_of = paths.sweep if table == "sweeps" else paths.relevance
            return [path_of("/".join(place), removed) for *place, removed in sweeps(config)]
        case "plans":
            return [
                paths.plan("/".join(place), removed) for *place, removed in studies.plans(config)
            ]
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
            written = [
                paths.generation_samples(*block) for block in studies.generation_blocks(config)
            ]
            return [
                paths.benchmark_samples(*block) for block in studies.benchmark_blocks(config)
            ] + written
        case "efficiency":
            return [
                paths.efficiency(model)
                for model in config.models
                if studies.efficiency_variants(config, model)
            ]
        case "diagnoses":
            return [paths.diagnosis(*place) for place in studies.diagnoses(config)]
    raise LaminaError(
        f"tables: nothing says what '{table}' is gathered from. Add it to lamina.study.tables.parts."
    )


def _overlaps(config: Configuration) -> list[str]:
    """Every check of a calibration against a benchmark that the studies' jobs wait for."""
    checks: set[str] = set()
    for model, calibration, task, block in studies.benchmark_blocks(config):
        if calibration != "none":
            listed = studies.block_variants(config, model, calibration, task, block)
            names = {calibration}.union(*(studies.read_by(config, variant) for variant in listed))
            checks.update(paths.overlap(model, name, task) for name in names)
    return sorted(checks)

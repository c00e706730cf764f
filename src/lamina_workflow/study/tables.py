"""The files that each gathered table is made from, as the configuration requires."""

from lamina import paths
from lamina.errors import LaminaError
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study import requests
from lamina_workflow.study.sweeps import list_sweeps


def files_of_table(config: Configuration, table: str) -> list[str]:
    """The files that one table is gathered from.

    Raises LaminaError if it is not known what the table is gathered from.
    """
    match table:
        case "models" | "layer_sizes":
            return _manifests(config)
        case "handles" | "gates":
            return []
        case "calibrations":
            calibrations = requests.list_calibrations(config)
            return [paths.calibration(model, name) for model, name in calibrations]
        case "shared_documents":
            return _overlap_checks(config)
        case "activations":
            captures = requests.list_captures(config)
            return [paths.activations(model, calibration) for model, calibration in captures]
        case "sweeps":
            return [paths.sweep("/".join(key), removed) for *key, removed in list_sweeps(config)]
        case "relevance":
            return [
                paths.relevance("/".join(key), removed) for *key, removed in list_sweeps(config)
            ]
        case "plans":
            return [
                paths.plan("/".join(key), removed) for *key, removed in requests.list_plans(config)
            ]
        case "searches":
            return [paths.search("/".join(key)) for key in requests.list_searches(config)]
        case "patches":
            return _patch_tables(config)
        case "training":
            return _training_curves(config)
        case "benchmarks":
            return [
                *(paths.benchmark(*block) for block in requests.benchmark_blocks(config)),
                *(paths.generation(*block) for block in requests.generation_blocks(config)),
            ]
        case "benchmark_samples":
            return [
                *(paths.benchmark_samples(*block) for block in requests.benchmark_blocks(config)),
                *(paths.generation_samples(*block) for block in requests.generation_blocks(config)),
            ]
        case "efficiency":
            return [
                paths.efficiency(model)
                for model in config.models
                if requests.efficiency_variants(config, model)
            ]
        case "diagnoses":
            return [paths.diagnosis(*diagnosis) for diagnosis in requests.list_diagnoses(config)]
    raise LaminaError(
        f"tables: nothing says what '{table}' is gathered from. Add a case to "
        "lamina_workflow.study.tables.files_of_table."
    )


def _manifests(config: Configuration) -> list[str]:
    """Manifests of all models, except donors that no study uses as a model."""
    studied_models: set[str] = set()
    for study in config.studies.values():
        studied_models.update(study.models)
    return [
        paths.manifest(model)
        for model in config.models
        if model in studied_models or model not in config.donors
    ]


def _overlap_checks(config: Configuration) -> list[str]:
    """Every check of a calibration against a benchmark that the studies' jobs wait for."""
    overlap_files: set[str] = set()
    for model, calibration, task, block in requests.benchmark_blocks(config):
        if calibration == "none":
            continue
        calibration_names = {calibration}
        for variant in requests.block_variants(config, model, calibration, task, block):
            calibration_names |= requests.read_by(config, variant)
        overlap_files.update(paths.overlap(model, name, task) for name in calibration_names)
    return sorted(overlap_files)


def _patch_tables(config: Configuration) -> list[str]:
    """One for each repair of each selector that a variant uses."""
    variants = requests.list_variants(config)
    fitted_repairs = {(v.key, v.repair) for v in variants if v.repair != "none"}
    return [paths.patch_table(key, repair) for key, repair in sorted(fitted_repairs)]


def _training_curves(config: Configuration) -> list[str]:
    """One for each healed variant."""
    variants = requests.list_variants(config)
    adapters = {paths.variant_files(variant).adapter for variant in variants}
    return sorted(paths.training(folder) for folder in adapters if folder)

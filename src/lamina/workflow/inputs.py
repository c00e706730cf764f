"""The files that jobs read, from the configuration and a job's wildcards `w`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lamina import paths
from lamina.config.calibrations import corpus_file
from lamina.config.configuration import Configuration
from lamina.data import task_files
from lamina.errors import LaminaError
from lamina.variant import Variant
from lamina.workflow import exports, studies


def tested(config: Configuration, task: str) -> Any:
    """The entry of a benchmark, which is a task or a perplexity text."""
    benchmarks = config.benchmarks
    return benchmarks.tasks[task] if task in benchmarks.tasks else benchmarks.perplexity[task]


def local_files(name: str, entry: Any) -> list[str]:
    """Local files behind a task, text or file of questions, so that editing them makes stale what reads them."""
    if choices := getattr(entry, "choices", None):
        return [choices]
    if hub := getattr(entry, "hub", None):
        return sorted(str(file) for file in Path(hub).rglob("*") if file.is_file())
    if text := getattr(entry, "text", None):
        return [corpus_file(text, getattr(entry, "split", None))]
    return task_files.files(name)


def calibration_files(config: Configuration, w: Any) -> list[str]:
    """Local files behind a calibration."""
    read = config.parts(w.calibration)
    return [file for entry in read.values() for name in entry.drawn or [""] for file in local_files(name, entry)]


def diagnosed(config: Configuration, w: Any) -> str:
    """What a diagnosis is measured on: the file that it names, or a calibration."""
    entry = config.diagnoses[w.diagnosis]
    return getattr(entry, "file", None) or paths.calibration(w.model, w.calibration)


def key(w: Any) -> str:
    """What a job's plan is made for."""
    return f"{w.model}/{w.calibration}/{w.selector}"


def variant(w: Any) -> Variant:
    """The variant that a job's wildcards spell out."""
    return Variant.of({**w, "removed": int(w.removed)})


def sweep_plan(w: Any) -> str | None:
    """The plan that says which units are gone before a sweep; none for the unpruned model."""
    own = "/".join([w.model, *studies.planned_for(w.calibration, w.selector)])
    return paths.plan(own, w.removed) if int(w.removed) else None


def sweep_blocks(config: Configuration, w: Any) -> list[str]:
    """The files of a sweep's jobs."""
    return [paths.sweep_block(key(w), w.removed, block) for block in range(studies.sweep_blocks(config, w.selector))]


def step_evidence(config: Configuration, w: Any) -> dict[str, str]:
    """What a plan is made from, by strategy, under the names that the script gives it."""
    selector = config.selectors[w.selector]
    if selector.strategy == "block":
        return {"activations": paths.activations(w.model, w.calibration)}
    if studies.step_pass(config, w.selector) is None:
        return {}
    before = _gone(config, w)
    evidence = {"sweep": _step_sweep(config, w, w.calibration)}
    return evidence | ({"previous": paths.plan(key(w), before)} if before else {})


def beside(config: Configuration, w: Any) -> dict[str, dict[str, str]]:
    """What a plan is made from on other calibrations than its own: of each the calibration and its sweep."""
    return {
        name: {"calibration": paths.calibration(w.model, name), "sweep": _step_sweep(config, w, name)}
        for name in studies.beside(config, w.calibration, w.selector)
    }


def _gone(config: Configuration, w: Any) -> int:
    """The number of units that are gone before a step."""
    return int(w.removed) - 1 if config.selectors[w.selector].strategy == "iterative" else 0


def _step_sweep(config: Configuration, w: Any, calibration: str) -> str:
    """The sweep of a calibration that a step reads."""
    before, name = _gone(config, w), w.selector
    if before == 0 and studies.starts_shared(config, w.selector):
        name = f"base/{studies.step_pass(config, w.selector)}/{config.selectors[w.selector].units}"
    elif calibration != w.calibration:
        name = f"for/{w.calibration}/{w.selector}"
    return paths.sweep(f"{w.model}/{calibration}/{name}", before)


def variants(listed: list[Variant]) -> list[str]:
    """The files behind variants. An adapter counts as there once its training curve is, which is written last."""
    found = set()
    for each in listed:
        files = paths.variant_files(each)
        found |= {files.plan, files.patch, files.adapter and paths.training(files.adapter)}
    return sorted(file for file in found if file)


def overlap_gates(config: Configuration, w: Any, listed: list[Variant]) -> list[str]:
    """Variants are benchmarked only on what no calibration holds that they were made from."""
    if w.calibration == "none":
        return [paths.task(w.task)]
    seen = {name for v in listed for name in studies.read_by(config, v)}
    return [paths.overlap(w.model, name, w.task) for name in sorted({w.calibration, *seen})]


def draft_gates(config: Configuration, model: str) -> list[str]:
    """What says that nothing that a model's drafts were made from holds their prompts."""
    drafts, listed = config.benchmarks.drafts, studies.draft_variants(config, model)
    seen = {name for v in listed for name in (v.calibration, *studies.read_by(config, v))}
    return [paths.overlap(model, name, drafts.text) for name in sorted(seen)] if drafts else []


def added_data(config: Configuration, w: Any, recovery: str) -> dict[str, str]:
    """The calibrations that a recovery is fitted on beside the job's own, by name."""
    if recovery == "none":
        return {}
    read = studies.fitted_on(config, studies.planned_for(w.calibration, w.selector)[0], recovery)
    return {name: paths.calibration(w.model, name) for name in read if name != w.calibration}


def donors(config: Configuration, w: Any) -> dict[str, str]:
    """The manifests of the siblings whose layers a job may put into its model, by name."""
    listed = studies.donors(config, w.selector)
    names = {sibling for name in listed for sibling in getattr(config.donors[name], "of", [name])}
    return {name: paths.manifest(name) for name in sorted(names)}


def healing_data(config: Configuration, w: Any) -> dict[str, str]:
    """The calibrations that a healing trains on beside the variant's own, by name."""
    names = studies.trained_on(config, w.calibration, w.healing)
    return {name: paths.calibration(w.model, name) for name in names if name != w.calibration}


def export(config: Configuration, w: Any) -> dict[str, Any]:
    """What a variant is exported from, by name. Its card shows benchmarks that are there; none is started for it.

    Raises
    ------
    LaminaError
        If nothing in the configuration makes the variant.
    """
    v, files = variant(w), paths.variant_files(variant(w))
    exports.check(config, v)
    measured = [
        paths.benchmark(*block)
        for block in studies.benchmark_blocks(config)
        if block[0] == v.model and block[1] in (v.calibration, "none")
    ]
    found = {
        "manifest": paths.manifest(v.model),
        "plan": files.plan,
        "patch": files.patch,
        "adapter": files.adapter and paths.adapter_weights(files.adapter),
        "benchmarks": [file for file in measured if Path(file).exists()],
    }
    return {name: file for name, file in found.items() if file is not None}


def table_parts(config: Configuration, table: str) -> list[str]:
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
            of = paths.sweep if table == "sweeps" else paths.relevance
            return [of("/".join(place), removed) for *place, removed in studies.sweeps(config)]
        case "plans":
            return [paths.plan("/".join(place), removed) for *place, removed in studies.plans(config)]
        case "searches":
            return [paths.search("/".join(place)) for place in studies.searches(config)]
        case "patches":
            fitted = {(v.key, v.recovery) for v in studies.variants(config) if v.recovery != "none"}
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
        case "drafts":
            return [paths.drafts(model) for model in config.models if studies.draft_variants(config, model)]
        case "diagnoses":
            return [paths.diagnosis(*place) for place in studies.diagnoses(config)]
    raise LaminaError(f"tables: nothing says what '{table}' is gathered from. Add it to lamina.workflow.inputs.")


def _overlaps(config: Configuration) -> list[str]:
    """Every check of a calibration against a benchmark that the studies' jobs wait for."""
    found = {gate for model in config.models for gate in draft_gates(config, model)}
    for model, calibration, task, block in studies.benchmark_blocks(config):
        if calibration != "none":
            place = SimpleNamespace(model=model, calibration=calibration, task=task)
            found.update(overlap_gates(config, place, studies.block_variants(config, model, calibration, task, block)))
    return sorted(found)

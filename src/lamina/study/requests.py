"""What the studies of a configuration ask for, as lists that rules turn into files.

Pure functions of a loaded configuration. Every list is free of duplicates, so that studies that
overlap share their jobs, and sorted, so that the order of studies and names changes nothing.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from lamina.config.configuration import Configuration
from lamina.config.metrics import MODULES
from lamina.config.studies import Maps, Prune, removed_count
from lamina.errors import LaminaError
from lamina.relevance.passes import CARRIED, metric_pass, passes
from lamina.study import paths
from lamina.study.paths import any_of
from lamina.study.variant import Variant

# The selectors of sweeps of unpruned models, as an expression.
BASE_SWEEP = r"base/(?:removal|stream|fit|gradient|weights)/(?:layer|attention|mlp)"
# How much more may be computed so that jobs of a sweep run side by side. Each job more costs 2 / (L + 1) of a sweep: it
# carries the model before the removals through L layers, and a sweep in one job runs L (L + 1) / 2 layers.
SHARING = 0.1


def variants(config: Configuration) -> list[Variant]:
    """Variants of all studies, without the unpruned models."""
    return sorted({variant for study in _pruning(config) for variant in _study_variants(config, study)})


def plans(config: Configuration) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of the plans that variants use; not the steps on the way to them."""
    return sorted({(v.model, v.calibration, v.selector, v.removed) for v in variants(config)})


def searching(config: Configuration) -> list[str]:
    """Selectors whose plans of all sizes are found by one job."""
    return [name for name, entry in config.selectors.items() if entry.SEARCHES]


def searches(config: Configuration) -> dict[tuple[str, str, str], list[int]]:
    """The sizes that are searched for, by (model, calibration, selector)."""
    sizes_of: dict[tuple[str, str, str], list[int]] = {}
    for model, calibration, selector, removed in plans(config):
        if config.selectors[selector].SEARCHES:
            sizes_of.setdefault((model, calibration, selector), []).append(removed)
    return sizes_of


def sizes(config: Configuration, model: str, calibration: str, selector: str, repair: str) -> list[int]:
    """Numbers of removed units for which a repair's patch is used."""
    return sorted(
        {
            variant.removed
            for study in _pruning(config)
            for variant in _study_variants(config, study, model, calibration)
            if variant.selector == selector and variant.repair == repair
        }
    )


def block_variants(config: Configuration, model: str, calibration: str, task: str, block: int) -> list[Variant]:
    """Variants of a calibration that one benchmark job measures on a task or perplexity text.

    A variant's block follows from its own key, so that adding one changes one block only. Calibration `none` gives the
    unpruned model, in block 0.
    """
    if calibration == "none":
        return [Variant.base(model)] if block == 0 and task in _model_tasks(config, model) else []
    return sorted(
        {
            variant
            for study in _pruning(config)
            if task in _study_tasks(config, study, calibration)
            for variant in _study_variants(config, study, model, calibration)
            if _block(config, variant) == block
        }
    )


def benchmark_blocks(config: Configuration) -> list[tuple[str, str, str, int]]:
    """(model, calibration, task, block) of every benchmark job, with calibration `none` for the unpruned models."""
    blocks = {(model, "none", task, 0) for model in config.models for task in _model_tasks(config, model)}
    for study in _pruning(config):
        for calibration in study.calibrations:
            tasks = _study_tasks(config, study, calibration)
            for model in study.models:
                numbers = {_block(config, variant) for variant in _study_variants(config, study, model, calibration)}
                blocks.update((model, calibration, task, number) for task in tasks for number in numbers)
    return sorted(blocks)


def generation_blocks(config: Configuration) -> list[tuple[str, str, str, int]]:
    """The benchmark jobs of the tasks to which answers are written; each has another job for the answers."""
    written = {name for name, task in config.benchmarks.tasks.items() if task.generate}
    return [block for block in benchmark_blocks(config) if block[2] in written]


def maps(config: Configuration) -> list[tuple[str, str, str, str]]:
    """(model, calibration, pass, units) of the sweeps of unpruned models that studies of maps need."""
    wanted: dict[tuple[str, str, str], set[str]] = {}
    for study in config.studies.values():
        if isinstance(study, Maps):
            for model, calibration in product(study.models, study.calibrations):
                wanted.setdefault((model, calibration, study.units), set()).update(study.metrics)
    return sorted((m, c, name, units) for (m, c, units), metrics in wanted.items() for name in passes(metrics))


def sweeps(config: Configuration, carried: bool = False) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of every sweep that goes into the tables.

    Sweeps of the unpruned model have the selector `base/{pass}/{units}`. If one pass carries another's metrics, the
    other is left out, so that no row is there twice. With `carried` those are included, because steps of selectors read
    them. It also includes the sweeps of other calibrations that steps are scored on, which go into no table.
    """
    base = {(model, calibration, units, pass_) for model, calibration, pass_, units in maps(config)}
    steps = set()
    for model, calibration, selector, removed in plans(config):
        pass_, entry = step_pass(config, selector), config.selectors[selector]
        if pass_ is None:
            continue
        shared = starts_shared(config, selector)
        if shared:
            base.add((model, calibration, entry.units, pass_))
        last = removed if entry.STEPS else 1
        steps |= {(model, calibration, selector, step) for step in range(int(shared), last)}
        for other in beside(config, calibration, selector) if carried else ():
            base |= {(model, other, entry.units, pass_)} if shared else set()
            steps |= {(model, other, f"for/{calibration}/{selector}", step) for step in range(int(shared), last)}
    if not carried:
        base -= {(m, c, units, CARRIED[pass_]) for m, c, units, pass_ in base if pass_ in CARRIED}
    return sorted({(m, c, f"base/{pass_}/{units}", 0) for m, c, units, pass_ in base} | steps)


def starts_shared(config: Configuration, selector: str) -> bool:
    """Whether a selector can use the shared sweep of the unpruned model: all units, all samples, nothing repaired."""
    entry = config.selectors[selector]
    return entry.budget == "full" and entry.repair is None and not entry.donors


def beside(config: Configuration, calibration: str, selector: str) -> dict[str, float]:
    """The calibrations that a selector scores removals on beside a variant's own, with their weights."""
    return {name: weight for name, weight in config.selectors[selector].also.items() if name != calibration}


def planned_for(calibration: str, selector: str) -> tuple[str, str]:
    """The calibration and the selector whose plans a sweep follows.

    A sweep of `calibration` under `for/{own}/{selector}` follows those of another calibration, `own`.
    """
    if selector.startswith("for/"):
        _, calibration, selector = selector.split("/")
    return calibration, selector


def sweep_of_step(config: Configuration, selector: str, gone: int, own: str, calibration: str) -> str:
    """The selector of the sweep of a calibration that a step for the plans of calibration `own` reads."""
    if gone == 0 and starts_shared(config, selector):
        return f"base/{step_pass(config, selector)}/{config.selectors[selector].units}"
    return selector if calibration == own else f"for/{own}/{selector}"


def beside_sweep(config: Configuration) -> str:
    """An expression for the selectors of sweeps of other calibrations than that of the plans."""
    return f"for/(?:{any_of(config.calibrations)})/(?:{any_of(config.selectors)})"


def looped(config: Configuration, selector: str) -> str:
    """The repair in place in the sweeps under a selector, which may be `base/{pass}/{units}`; `none` if none is."""
    if selector.startswith("base/"):
        return "none"
    return config.selectors[planned_for("", selector)[1]].repair or "none"


def donors(config: Configuration, selector: str) -> list[str]:
    """The donors of the sweeps under a selector, which may be `base/{pass}/{units}`."""
    return [] if selector.startswith("base/") else list(config.selectors[planned_for("", selector)[1]].donors)


def siblings(config: Configuration, selector: str) -> list[str]:
    """The models that the donors of a selector are, or are merged from."""
    named = {sibling for name in donors(config, selector) for sibling in getattr(config.donors[name], "of", [name])}
    return sorted(named)


def added(config: Configuration, calibration: str, selector: str, repair: str) -> list[str]:
    """The calibrations beside its own that a repair of this selector's plans is fitted on."""
    if repair == "none":
        return []
    read = fitted_on(config, planned_for(calibration, selector)[0], repair)
    return [name for name in sorted(read) if name != calibration]


def sweep_settings(config: Configuration, selector: str) -> tuple[str, str, str]:
    """Pass, kind of unit and budget of the sweeps under a selector, which may be `base/{pass}/{units}`."""
    if selector.startswith("base/"):
        _, pass_, units = selector.split("/")
        return pass_, units, "full"
    _, selector = planned_for("", selector)
    entry = config.selectors[selector]
    return step_pass(config, selector) or "removal", entry.units, entry.budget


def sweep_blocks(config: Configuration, model: str, selector: str) -> int:
    """Jobs of a sweep. Budgets compare all units, and passes over weights are not worth sharing.

    `auto` depends on the model's depth alone, so that neither the machine nor other studies make a sweep stale.
    """
    pass_, _, budget = sweep_settings(config, selector)
    if budget != "full" or pass_ in MODULES:
        return 1
    asked = config.sweep.blocks
    return asked if asked != "auto" else 1 + int(SHARING * ((config.models[model].layers or 0) + 1) / 2)


def step_pass(config: Configuration, selector: str) -> str | None:
    """The pass whose sweep a step of a selector reads; None where no sweep is read.

    A strategy may read the captured activations instead, or no measurement.
    """
    entry = config.selectors[selector]
    return metric_pass(entry.metric) if entry.metric and entry.SWEEPS else None


def captures(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that a study uses."""
    return sorted({(m, c) for study in config.studies.values() for m in study.models for c in study.calibrations})


def fitted_on(config: Configuration, calibration: str, repair: str) -> list[str]:
    """Calibrations that a variant's repair is fitted on, its own first."""
    return list(config.repairs[repair].weights(calibration, auto=0.0)) if repair != "none" else [calibration]


def trained_on(config: Configuration, calibration: str, healing: str) -> dict[str, float]:
    """Calibrations that a variant's healing trains on, with the weight of a token."""
    return config.healings[healing].weights(calibration) if healing != "none" else {}


def read_by(config: Configuration, variant: Variant) -> set[str]:
    """Calibrations that a variant was made from, by its selector, its repairs and its healing."""
    ways = (variant.repair, looped(config, variant.selector))
    fitted = {name for repair in ways for name in fitted_on(config, variant.calibration, repair)}
    fitted |= set(trained_on(config, variant.calibration, variant.healing))
    return fitted.union(beside(config, variant.calibration, variant.selector))


def calibrations(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that is read: those of studies, and others that make variants."""
    mended = {(v.model, name) for v in variants(config) for name in read_by(config, v)}
    return sorted({*captures(config), *mended})


def diagnoses(config: Configuration) -> list[tuple[str, str, str]]:
    """(model, calibration, diagnosis) of every diagnosis that a study lists; calibration none for those of a file."""
    listed = {way for s in config.studies.values() for way in product(s.models, s.calibrations, s.diagnoses)}
    return sorted({(m, "none" if config.diagnoses[name].FILED else c, name) for m, c, name in listed})


def efficiency_variants(config: Configuration, model: str) -> list[Variant]:
    """Variants of a model that may differ in cost: all, without healing, because it is merged into the weights.

    The cost depends on the kind of unit, the number of removed units, the repair, and the number of *runs* of removed
    layers, because each run has one patch. Only plans know the runs: so the job is given every variant, reads the plans
    and measures the first of each kind. Empty if the configuration measures no efficiency.
    """
    if config.benchmarks.efficiency is None:
        return []
    every = (variant for study in _pruning(config) for variant in _study_variants(config, study, model))
    return sorted({replace(variant, healing="none") for variant in every})


def structures(config: Configuration, model: str) -> int:
    """How many variants of a model differ in cost, as far as that is known before there are plans."""
    listed = efficiency_variants(config, model)
    return len({(config.selectors[v.selector].units, v.removed, v.repair) for v in listed})


def _pruning(config: Configuration) -> list[Prune]:
    return [study for study in config.studies.values() if isinstance(study, Prune)]


def _study_variants(
    config: Configuration, study: Prune, model: str | None = None, calibration: str | None = None
) -> Iterator[Variant]:
    """Variants of one study in the order of its lists, of one model and calibration if they are given."""
    for studied in study.models:
        if model in (None, studied):
            counts = [removed_count(entry, config.models[studied].layers) for entry in study.removed]
            calibrations = [name for name in study.calibrations if calibration in (None, name)]
            ways = product(calibrations, study.selectors, counts, study.repairs, study.healings)
            yield from (Variant(studied, *way) for way in ways)


def _study_tasks(config: Configuration, study: Prune, calibration: str) -> list[str]:
    tasks, texts = study.tasks, study.perplexity
    if tasks == "own":
        tasks = config.own_tasks(calibration)
    elif tasks == "all":
        tasks = list(config.benchmarks.tasks)
    return [*tasks, *(config.benchmarks.perplexity if texts == "all" else texts)]


def _model_tasks(config: Configuration, model: str) -> set[str]:
    """The tasks and texts that the unpruned model is measured on: all, if any study prunes it."""
    used = any(model in study.models for study in _pruning(config))
    return {*config.benchmarks.tasks, *config.benchmarks.perplexity} if used else set()


def _block(config: Configuration, variant: Variant) -> int:
    return zlib.crc32(str(variant).encode()) % config.benchmark.blocks


def parts(config: Configuration, table: str) -> list[str]:
    """The files that one table is gathered from: exactly those that the configuration asks for.

    Raises
    ------
    LaminaError
        If nothing says what the table is gathered from.
    """
    match table:
        case "models":
            studied = {model for study in config.studies.values() for model in study.models}
            # A donor is no model of the report unless a study lists it.
            return [paths.manifest(model) for model in config.models if model in studied or model not in config.donors]
        case "calibrations":
            return [paths.calibration(*place) for place in calibrations(config)]
        case "shared_documents":
            return _overlaps(config)
        case "activations":
            return [paths.activations(*place) for place in captures(config)]
        case "sweeps" | "relevance":
            path_of = paths.sweep if table == "sweeps" else paths.relevance
            return [path_of("/".join(place), removed) for *place, removed in sweeps(config)]
        case "plans":
            return [paths.plan("/".join(place), removed) for *place, removed in plans(config)]
        case "searches":
            return [paths.search("/".join(place)) for place in searches(config)]
        case "patches":
            fitted = {(v.key, v.repair) for v in variants(config) if v.repair != "none"}
            return [paths.patch_table(*place) for place in sorted(fitted)]
        case "training":
            healed = {paths.variant_files(v).adapter for v in variants(config)}
            return sorted(paths.training(folder) for folder in healed if folder)
        case "benchmarks":
            written = [paths.generation(*block) for block in generation_blocks(config)]
            return [paths.benchmark(*block) for block in benchmark_blocks(config)] + written
        case "benchmark_samples":
            written = [paths.generation_samples(*block) for block in generation_blocks(config)]
            return [paths.benchmark_samples(*block) for block in benchmark_blocks(config)] + written
        case "efficiency":
            return [paths.efficiency(model) for model in config.models if efficiency_variants(config, model)]
        case "diagnoses":
            return [paths.diagnosis(*place) for place in diagnoses(config)]
    raise LaminaError(f"tables: nothing says what '{table}' is gathered from. Add it to lamina.study.requests.parts.")


def _overlaps(config: Configuration) -> list[str]:
    """Every check of a calibration against a benchmark that the studies' jobs wait for."""
    checks: set[str] = set()
    for model, calibration, task, block in benchmark_blocks(config):
        if calibration != "none":
            listed = block_variants(config, model, calibration, task, block)
            names = {calibration}.union(*(read_by(config, variant) for variant in listed))
            checks.update(paths.overlap(model, name, task) for name in names)
    return sorted(checks)

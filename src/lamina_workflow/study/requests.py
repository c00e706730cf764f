"""What the studies of a configuration require, as lists that rules turn into files.

These are pure functions of a loaded configuration. Lists have no duplicates, so that overlapping
studies share their jobs. They are sorted, so that the order of studies and names changes nothing.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from lamina.variant import Variant
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.config.studies import Gate, Prune, ReachedSize, Size


def list_variants(config: Configuration) -> list[Variant]:
    """Variants of all studies, without the base models."""
    all_variants: set[Variant] = set()
    for study in _prune_studies(config):
        all_variants.update(_study_variants(config, study))
    return sorted(all_variants)


def list_plans(config: Configuration) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of the plans that variants use.

    The intermediate steps are left out.
    """
    return sorted({(v.model, v.calibration, v.selector, v.removed) for v in list_variants(config)})


def describe_sizes(config: Configuration) -> list[str]:
    """What the studies' sizes amount to, in sentences.

    Selectors are named if their numbers of the same kind of units differ.
    """
    selectors_by_sentence: dict[tuple[Size, str, str], dict[str, list[str]]] = {}
    for (model, selector, size), reached_size in config.reached_sizes.items():
        units = config.selectors[selector].units
        sentence_selectors = selectors_by_sentence.setdefault((size, model, units), {})
        sentence = _outcome(size, units, reached_size, config.models[model].layers or 0)
        sentence_selectors.setdefault(sentence, []).append(selector)

    outcome_sentences: list[str] = []
    for (size, model, _), sentence_selectors in selectors_by_sentence.items():
        for sentence, selectors in sentence_selectors.items():
            selector_words = f" by {' and '.join(selectors)}" if len(sentence_selectors) > 1 else ""
            outcome_sentences.append(f"{model}, {size}{selector_words}: {sentence}")
    return outcome_sentences


def _outcome(size: Size, units: str, reached_size: ReachedSize, n_layers: int) -> str:
    """`without 2 of 12 layers, at most 5.8 of 7.1 GB, 82 %.`, or the same for added layers."""
    words_by_units = {"layer": "layers", "both": "layers in sub-layers"}
    unit_words = words_by_units.get(units, f"{units} sub-layers")
    left_share = size.share(reached_size.left, reached_size.whole)
    estimate = " by an estimate from shapes" if size.what == "latency" else ""
    if reached_size.n_removed < 0:
        return f"with {-reached_size.n_removed} {unit_words} more, at most {left_share}{estimate}."
    return (
        f"without {reached_size.n_removed} of {n_layers} {unit_words}, at most "
        f"{left_share}{estimate}."
    )


def searching_selectors(config: Configuration) -> list[str]:
    """Selectors for which one job finds the plans of all sizes."""
    return [name for name, selector in config.selectors.items() if selector.SEARCHES]


def list_searches(config: Configuration) -> dict[tuple[str, str, str], list[int]]:
    """The sizes to be searched, by (model, calibration, selector)."""
    searched_sizes: dict[tuple[str, str, str], list[int]] = {}
    for model, calibration, selector, removed in list_plans(config):
        if config.selectors[selector].SEARCHES:
            searched_sizes.setdefault((model, calibration, selector), []).append(removed)
    return searched_sizes


def sizes_of_patches(
    config: Configuration, model: str, calibration: str, selector: str, repair: str
) -> list[int]:
    """Numbers of removed units for which a repair's patch is used."""
    patch_sizes: set[int] = set()
    for study in _prune_studies(config):
        for variant in _study_variants(config, study, model, calibration):
            if variant.selector == selector and variant.repair == repair:
                patch_sizes.add(variant.removed)
    return sorted(patch_sizes)


def block_variants(
    config: Configuration, model: str, calibration: str, task: str, block: int
) -> list[Variant]:
    """Variants of a calibration that one benchmark job measures on a task or perplexity text.

    A variant's block depends only on its own key, so that adding one changes only one block.
    Calibration `none` gives the base model, in block 0.
    """
    if calibration == "none":
        is_measured = block == 0 and task in _base_tasks(config, model)
        return [Variant.base(model)] if is_measured else []

    measured_variants: set[Variant] = set()
    for study in _prune_studies(config):
        if task not in _study_tasks(config, study, calibration):
            continue
        for variant in _study_variants(config, study, model, calibration):
            if _block_of(config, variant) == block:
                measured_variants.add(variant)
    return sorted(measured_variants)


def list_gates(config: Configuration) -> list[tuple[Variant, Gate]]:
    """What the studies require of each of their variants."""
    gates: set[tuple[Variant, Gate]] = set()
    for study in _prune_studies(config):
        gates.update(product(_study_variants(config, study), study.gates))
    return sorted(gates, key=lambda pair: (pair[0], str(pair[1])))


def list_tasks(config: Configuration, variant: Variant) -> list[str]:
    """The tasks, without texts, on which studies measure a variant or a base model."""
    measured = set[str]()
    if variant.is_base:
        measured = _base_tasks(config, variant.model)
    for study in _prune_studies(config):
        if variant in _study_variants(config, study, variant.model, variant.calibration):
            measured.update(_study_tasks(config, study, variant.calibration))
    return sorted(measured & config.benchmarks.tasks.keys())


def benchmark_blocks(config: Configuration) -> list[tuple[str, str, str, int]]:
    """(model, calibration, task, block) of every benchmark job.

    Calibration `none` stands for the base models.
    """
    block_keys: set[tuple[str, str, str, int]] = set()
    for model in config.models:
        block_keys.update((model, "none", task, 0) for task in _base_tasks(config, model))
    for study in _prune_studies(config):
        for model, calibration in product(study.models, study.calibrations):
            studied_variants = _study_variants(config, study, model, calibration)
            block_numbers = {_block_of(config, variant) for variant in studied_variants}
            tasks = _study_tasks(config, study, calibration)
            for task, block_number in product(tasks, block_numbers):
                block_keys.add((model, calibration, task, block_number))
    return sorted(block_keys)


def generation_blocks(config: Configuration) -> list[tuple[str, str, str, int]]:
    """The benchmark jobs of tasks with written answers; each has a second job for these."""
    answered_tasks = {name for name, task in config.benchmarks.tasks.items() if task.generate}
    block_keys = benchmark_blocks(config)
    return [
        (model, calibration, task, block)
        for model, calibration, task, block in block_keys
        if task in answered_tasks
    ]


def list_captures(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that a study uses."""
    captured_keys: set[tuple[str, str]] = set()
    for study in config.studies.values():
        captured_keys.update(product(study.models, study.calibrations))
    return sorted(captured_keys)


def further_calibrations(
    config: Configuration, calibration: str, selector: str
) -> dict[str, float]:
    """The further calibrations on which a selector scores removals, with their weights.

    calibration: The variant's own.
    """
    weights = config.selectors[selector].also
    return {name: weight for name, weight in weights.items() if name != calibration}


def fitted_on(config: Configuration, calibration: str, repair: str) -> list[str]:
    """Calibrations on which a variant's repair is fitted, its own first."""
    if repair == "none":
        return [calibration]
    return list(config.repairs[repair].weights(calibration, auto=0.0))


def trained_on(config: Configuration, calibration: str, healing: str) -> dict[str, float]:
    """Calibrations that a variant's healing trains on, with the weight of a token."""
    if healing == "none":
        return {}
    return config.healings[healing].weights(calibration)


def read_by(config: Configuration, variant: Variant) -> set[str]:
    """Calibrations from which a variant was made: by its selector, its repair and its healing."""
    calibration = variant.calibration
    return {
        calibration,
        *fitted_on(config, calibration, variant.repair),
        *trained_on(config, calibration, variant.healing),
        *chosen_on(config, calibration, variant.selector),
    }


def chosen_on(config: Configuration, calibration: str, selector: str) -> set[str]:
    """The calibrations that a selector reads in addition to a variant's own."""
    options = config.selectors[selector]
    calibrations_read = set(further_calibrations(config, calibration, selector))
    if options.judge:
        calibrations_read.add(options.judge)
    for repair in [options.repair, *options.repairs]:
        if repair:
            calibrations_read.update(fitted_on(config, calibration, repair))
    return calibrations_read - {calibration}


def list_calibrations(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that is read.

    They are those that studies list, and others from which variants are made.
    """
    calibrations_read = set(list_captures(config))
    for variant in list_variants(config):
        calibrations_read.update((variant.model, name) for name in read_by(config, variant))
    return sorted(calibrations_read)


def list_diagnoses(config: Configuration) -> list[tuple[str, str, str]]:
    """(model, calibration, diagnosis) of every diagnosis that a study lists.

    Calibration `none` stands for the file of a diagnosis that reads one.
    """
    diagnosis_keys: set[tuple[str, str, str]] = set()
    for study in config.studies.values():
        for model, calibration, name in product(study.models, study.calibrations, study.diagnoses):
            if config.diagnoses[name].FILED:
                diagnosis_keys.add((model, "none", name))
            else:
                diagnosis_keys.add((model, calibration, name))
    return sorted(diagnosis_keys)


def efficiency_variants(config: Configuration, model: str) -> list[Variant]:
    """Variants of a model that may differ in cost; empty if no efficiency is measured.

    They are all variants without healings, because these are merged into the weights. Only their
    models show which ones cost the same: the job builds every variant, and times the first of each
    cost.
    """
    if config.benchmarks.efficiency is None:
        return []
    timed_variants: set[Variant] = set()
    for study in _prune_studies(config):
        for variant in _study_variants(config, study, model):
            timed_variants.add(replace(variant, healing="none"))
    return sorted(timed_variants)


def count_structures(config: Configuration, model: str) -> int:
    """How many variants of a model differ in cost, as far as this is known without the plans."""
    structures = {
        (config.selectors[variant.selector].units, variant.removed, variant.repair)
        for variant in efficiency_variants(config, model)
    }
    return len(structures)


def _prune_studies(config: Configuration) -> list[Prune]:
    return [study for study in config.studies.values() if isinstance(study, Prune)]


def _study_variants(
    config: Configuration, study: Prune, model: str | None = None, calibration: str | None = None
) -> Iterator[Variant]:
    """Variants of one study in the order of its lists, of one model and calibration if given."""
    models = [name for name in study.models if model in (None, name)]
    calibrations = [name for name in study.calibrations if calibration in (None, name)]
    for model_name in models:
        for calibration_name, selector, entry in product(
            calibrations, study.selectors, study.removed
        ):
            n_removed = config.count_removed(model_name, selector, entry)
            for repair, healing in product(study.repairs, study.healings):
                yield Variant(model_name, calibration_name, selector, n_removed, repair, healing)


def _study_tasks(config: Configuration, study: Prune, calibration: str) -> list[str]:
    """The tasks and perplexity texts on which a study measures the variants of a calibration."""
    task_names = study.tasks
    if task_names == "own":
        task_names = config.own_tasks(calibration)
    elif task_names == "all":
        task_names = list(config.benchmarks.tasks)

    text_names = study.perplexity
    if text_names == "all":
        text_names = list(config.benchmarks.perplexity)
    gated_names = [gate.task for gate in study.gates]
    return list(dict.fromkeys([*task_names, *text_names, *gated_names]))


def _base_tasks(config: Configuration, model: str) -> set[str]:
    """The tasks and texts on which the base model is measured: all, if any study prunes it."""
    is_pruned = any(model in study.models for study in _prune_studies(config))
    if not is_pruned:
        return set()
    return {*config.benchmarks.tasks, *config.benchmarks.perplexity}


def _block_of(config: Configuration, variant: Variant) -> int:
    return zlib.crc32(str(variant).encode()) % config.benchmark.blocks

"""What the studies of a configuration ask for, as lists that rules turn into files.

Pure functions of a loaded configuration. Every list is free of duplicates, so that studies that
overlap share their jobs, and sorted, so that the order of studies and names changes nothing.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from lamina.config.configuration import Configuration
from lamina.config.studies import Prune, ReachedSize, Size
from lamina.study.variant import Variant


def variants(config: Configuration) -> list[Variant]:
    """Variants of all studies, without the unpruned models."""
    return sorted(
        {variant for study in _pruning(config) for variant in _study_variants(config, study)}
    )


def plans(config: Configuration) -> list[tuple[str, str, str, int]]:
    """(model, calibration, selector, removed) of the plans that variants use; not the steps on the way to them."""
    return sorted({(v.model, v.calibration, v.selector, v.removed) for v in variants(config)})


def outcomes(config: Configuration) -> list[str]:
    """What the sizes of the studies come to, in sentences.

    Selectors are named where they come to different numbers of the same kind of units.
    """
    selectors_by_sentence: dict[tuple[Size, str, str], dict[str, list[str]]] = {}
    for (model, selector, size), reached in config.reached_sizes.items():
        units = config.selectors[selector].units
        sentences = selectors_by_sentence.setdefault((size, model, units), {})
        sentence = _outcome(size, units, reached, config.models[model].layers or 0)
        sentences.setdefault(sentence, []).append(selector)

    outcomes: list[str] = []
    for (size, model, _), sentences in selectors_by_sentence.items():
        for sentence, selectors in sentences.items():
            by = f" by {' and '.join(selectors)}" if len(sentences) > 1 else ""
            outcomes.append(f"{model}, {size}{by}: {sentence}")
    return outcomes


def _outcome(size: Size, units: str, reached: ReachedSize, n_layers: int) -> str:
    """`without 2 of 12 layers, at most 5.8 of 7.1 GB, 82 % are left.`"""
    kinds = {"layer": "layers", "both": "layers in sub-layers"}
    kind = kinds.get(units, f"{units} sub-layers")
    left = size.share(reached.left, reached.whole)
    estimate = " by an estimate from shapes" if size.what == "latency" else ""
    return f"without {reached.n_removed} of {n_layers} {kind}, at most {left}{estimate}."


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


def sizes(
    config: Configuration, model: str, calibration: str, selector: str, repair: str
) -> list[int]:
    """Numbers of removed units for which a repair's patch is used."""
    return sorted(
        {
            variant.removed
            for study in _pruning(config)
            for variant in _study_variants(config, study, model, calibration)
            if variant.selector == selector and variant.repair == repair
        }
    )


def block_variants(
    config: Configuration, model: str, calibration: str, task: str, block: int
) -> list[Variant]:
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
    blocks = {
        (model, "none", task, 0) for model in config.models for task in _model_tasks(config, model)
    }
    for study in _pruning(config):
        for calibration in study.calibrations:
            tasks = _study_tasks(config, study, calibration)
            for model in study.models:
                numbers = {
                    _block(config, variant)
                    for variant in _study_variants(config, study, model, calibration)
                }
                blocks.update(
                    (model, calibration, task, number) for task in tasks for number in numbers
                )
    return sorted(blocks)


def generation_blocks(config: Configuration) -> list[tuple[str, str, str, int]]:
    """The benchmark jobs of the tasks to which answers are written; each has another job for the answers."""
    written = {name for name, task in config.benchmarks.tasks.items() if task.generate}
    return [block for block in benchmark_blocks(config) if block[2] in written]


def captures(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that a study uses."""
    return sorted(
        {
            (m, c)
            for study in config.studies.values()
            for m in study.models
            for c in study.calibrations
        }
    )


def beside(config: Configuration, calibration: str, selector: str) -> dict[str, float]:
    """The calibrations that a selector scores removals on beside a variant's own, with their weights."""
    return {
        name: weight
        for name, weight in config.selectors[selector].also.items()
        if name != calibration
    }


def fitted_on(config: Configuration, calibration: str, repair: str) -> list[str]:
    """Calibrations that a variant's repair is fitted on, its own first."""
    return (
        list(config.repairs[repair].weights(calibration, auto=0.0))
        if repair != "none"
        else [calibration]
    )


def trained_on(config: Configuration, calibration: str, healing: str) -> dict[str, float]:
    """Calibrations that a variant's healing trains on, with the weight of a token."""
    return config.healings[healing].weights(calibration) if healing != "none" else {}


def read_by(config: Configuration, variant: Variant) -> set[str]:
    """Calibrations that a variant was made from, by its selector, its repairs and its healing."""
    made = {*fitted_on(config, variant.calibration, variant.repair), variant.calibration}
    made |= set(trained_on(config, variant.calibration, variant.healing))
    return made.union(chosen_on(config, variant.calibration, variant.selector))


def chosen_on(config: Configuration, calibration: str, selector: str) -> set[str]:
    """The calibrations beside a variant's own that its selector reads."""
    entry = config.selectors[selector]
    fitted = {
        name
        for repair in filter(None, [entry.repair, *entry.repairs])
        for name in fitted_on(config, calibration, repair)
    }
    judging = {entry.judge} if entry.judge else set()
    return (fitted | judging | set(beside(config, calibration, selector))) - {calibration}


def calibrations(config: Configuration) -> list[tuple[str, str]]:
    """(model, calibration) of every calibration that is read: those of studies, and others that make variants."""
    mended = {(v.model, name) for v in variants(config) for name in read_by(config, v)}
    return sorted({*captures(config), *mended})


def diagnoses(config: Configuration) -> list[tuple[str, str, str]]:
    """(model, calibration, diagnosis) of every diagnosis that a study lists; calibration none for those of a file."""
    listed = {
        way
        for s in config.studies.values()
        for way in product(s.models, s.calibrations, s.diagnoses)
    }
    return sorted(
        {(m, "none" if config.diagnoses[name].FILED else c, name) for m, c, name in listed}
    )


def efficiency_variants(config: Configuration, model: str) -> list[Variant]:
    """Variants of a model that may differ in cost: all, without healing, because it is merged into the weights.

    The cost depends on the kind of unit, the number of removed units, the repair, and the number of *runs* of removed
    layers, because each run has one patch. Only plans know the runs: so the job is given every variant, reads the plans
    and measures the first of each kind. Empty if the configuration measures no efficiency.
    """
    if config.benchmarks.efficiency is None:
        return []
    every = (
        variant for study in _pruning(config) for variant in _study_variants(config, study, model)
    )
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
        if model not in (None, studied):
            continue
        sized = [
            (selector, config.n_removed(studied, selector, entry))
            for selector, entry in product(study.selectors, study.removed)
        ]
        calibrations = [name for name in study.calibrations if calibration in (None, name)]
        ways = product(calibrations, sized, study.repairs, study.healings)
        for own, (selector, n_removed), repair, healing in ways:
            yield Variant(studied, own, selector, n_removed, repair, healing)


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

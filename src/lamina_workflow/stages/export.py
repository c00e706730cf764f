"""Jobs of rules/export.smk: export a variant as a checkpoint, or its answers in lm-eval's files.

Variants that nothing makes are refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from lamina.errors import LaminaError
from lamina.models.gguf import check_cut
from lamina.options.benchmarks import TaskEntry
from lamina.options.entry import Options
from lamina.options.explain import suggest
from lamina.variant import EXPORTED_AS, Variant
from lamina_workflow.checks.removals import MOST_LAYERS, RemovalChecks
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages.benchmark import Measuring
from lamina_workflow.stages.changes import repair_modules
from lamina_workflow.stages.job import READ, Job, follow_family
from lamina_workflow.study import requests


class ExportVariant(Job):
    """One variant, as text. Its card shows the existing `benchmarks`; the export starts none.

    `form` is one of `lamina.variant.EXPORTED_AS`, `shard` the largest weights file, such as 5GB.
    `file` is the GGUF file of the base model, for form `gguf`.
    """

    PACKAGES = True

    variant: str
    form: str
    shard: str
    repairs: list[str] = []
    file: Annotated[str | None, READ] = None
    manifest: Annotated[str, READ] = ""
    plan: Annotated[str | None, READ] = None
    patch: Annotated[str | None, READ] = None
    adapter: Annotated[list[str], READ] = []
    benchmarks: Annotated[list[str], READ] = []

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variant = Variant.of(w)
        check_variant(config, variant)
        return cls(
            variant=str(variant),
            form=w.form,
            shard=w.shard,
            repairs=repair_modules(config, [w.repair]),
            follows=follow_family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)


class LogSamples(Measuring):
    """One variant, or the base model, on all tasks on which a study measures it."""

    tasks: dict[str, Options[TaskEntry]]

    @classmethod
    def of(cls, config: Configuration, w: Any) -> Self:
        variant = Variant.of(w)
        names = requests.list_tasks(config, variant)
        return cls(
            variants=[str(variant)],
            tasks={name: config.benchmarks.tasks[name] for name in names},
            repairs=repair_modules(config, [variant.repair]),
            follows=follow_family(config, variant.model),
        )


def requested_variants(arguments: Iterable[str], folder: str) -> list[str]:
    """The variants in a folder among the targets on Snakemake's command line, as text."""
    return [argument.removeprefix(folder) for argument in arguments if argument.startswith(folder)]


def check_form(environment: Mapping[str, str], config: Configuration, variant: Variant) -> None:
    """Refuse an unknown form or size of weights files, before an earlier export is deleted.

    Raises LaminaError if one is unknown, or the variant cannot have the form. The message says what
    may be written.
    """
    form = environment.get("LAMINA_EXPORT_FORM")
    shard = environment.get("LAMINA_EXPORT_SHARD")
    if form and form not in EXPORTED_AS:
        raise LaminaError(f"there is no export form '{form}'. {suggest(form, EXPORTED_AS)}")
    if form == "gguf":
        selector = config.selectors[variant.selector]
        source = config.models[variant.model].source
        additions = "layers of other models" if selector.donors else ""
        check_cut(variant, source, selector.units, additions)
    if shard and not re.fullmatch(r"[1-9]\d*[KMG]B", shard):
        raise LaminaError(
            f"'{shard}' is not a file size. Write a number with KB, MB or GB, such as 2GB."
        )


def check_variant(config: Configuration, variant: Variant) -> None:
    """Refuse a variant that nothing in the configuration makes.

    Raises LaminaError if a name in it is unknown, or no study makes it. The message says which, and
    the nearest valid one.
    """
    location = f"the variant {variant}"
    if variant.is_base:
        raise LaminaError(
            f"{location} is the base model, which is already a checkpoint. Write a pruned variant."
        )
    _check_names(config, variant, location)
    _check_size(config, variant, location)
    if variant.healing != "none" and variant not in requests.list_variants(config):
        raise LaminaError(
            f"{location}: no study heals it, and training it only for an export would leave it "
            f"without benchmarks. Add '{variant.healing}' to `healings` of a study with the rest "
            "of this variant, or write none for its healing."
        )


def check_measured(config: Configuration, variant: Variant) -> None:
    """Refuse a variant that no study measures on a task.

    Raises LaminaError as `check_variant` does, except that base models are allowed.
    """
    if variant != Variant.base(variant.model):
        check_variant(config, variant)
    if variant.model not in config.models or not requests.list_tasks(config, variant):
        raise LaminaError(
            f"no study measures {variant} on a task. Write a variant of a study, or a base model, "
            f"such as {Variant.base(next(iter(config.models)))}."
        )


def _check_names(config: Configuration, variant: Variant, location: str) -> None:
    for name, section, known_names in (
        (variant.model, "models", list(config.models)),
        (variant.calibration, "calibrations", list(config.calibrations)),
        (variant.selector, "selectors", list(config.selectors)),
        (variant.repair, "repairs", ["none", *config.repairs]),
        (variant.healing, "healings", ["none", *config.healings]),
    ):
        if name in known_names:
            continue
        message = f"{location}: '{name}' is not defined under `{section}`. "
        message += suggest(name, known_names)
        if section == "models":
            message += " For another configuration, begin the command with CONFIG=config/NAME.yaml."
        raise LaminaError(message)


def _check_size(config: Configuration, variant: Variant, location: str) -> None:
    """Refuse a size that the selector cannot have, or that no study searches or repairs."""
    selector = config.selectors[variant.selector]
    n_layers = config.models[variant.model].layers
    checks = RemovalChecks(config, location, variant.model, n_layers or MOST_LAYERS)
    checks.check_sign(variant.selector, variant.removed)
    if n_layers is not None:
        checks.check_count(variant.selector, variant.removed)
    key = (variant.model, variant.calibration, variant.selector)
    searched_sizes = requests.list_searches(config).get(key, [])
    if selector.SEARCHES and variant.removed not in searched_sizes:
        raise LaminaError(
            f"{location}: no study searches '{variant.selector}' for {variant.removed} units. Add "
            f"{variant.removed} to `removed` of a study"
            f"{_or_nearest(variant.removed, searched_sizes)}."
        )
    repaired_sizes = requests.sizes_of_patches(config, *key, variant.repair)
    if variant.repair != "none" and variant.removed not in repaired_sizes:
        raise LaminaError(
            f"{location}: no study fits repair '{variant.repair}' to removed={variant.removed} of "
            f"{variant.key}. Add {variant.removed} to `removed` (and '{variant.repair}' to "
            f"`repairs`) of a study{_or_nearest(variant.removed, repaired_sizes)}."
        )


def _or_nearest(n_removed: int, sizes: Sequence[int]) -> str:
    """The nearest of the valid sizes; empty if there are none."""
    if not sizes:
        return ""
    return f", or write removed={min(sizes, key=lambda size: abs(size - n_removed))}"

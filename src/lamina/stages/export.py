"""Job of rules/export.smk: a variant as a checkpoint; and the refusal of names that nothing makes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from lamina.config.configuration import Configuration
from lamina.config.explain import nearest
from lamina.errors import LaminaError
from lamina.models.gguf import check_cut
from lamina.stages.changes import repair_modules
from lamina.stages.job import READ, Job, family
from lamina.study import paths
from lamina.study import requests as studies
from lamina.study.variant import EXPORTED_AS, Variant


class ExportVariant(Job):
    """One variant, as text. Its card shows the `benchmarks` that exist; the export starts none.

    `form` is one of `lamina.study.variant.EXPORTED_AS`, `shard` the largest weights file, such as 5GB. `file` is the
    GGUF file of the base model for the form of that name.
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
        variant = Variant.of({**dict(w.items()), "removed": int(w.removed)})
        check_variant(config, variant)
        repairs = repair_modules(config, [w.repair])
        return cls(
            variant=str(variant),
            form=w.form,
            shard=w.shard,
            repairs=repairs,
            follows=family(config, w.model),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self.repairs)


def requested_variants(arguments: Iterable[str]) -> list[str]:
    """The variants among the targets on Snakemake's command line, as text."""
    folder = paths.export("")
    return [argument.removeprefix(folder) for argument in arguments if argument.startswith(folder)]


def check_form(environment: Mapping[str, str], config: Configuration, variant: Variant) -> None:
    """Refuse an unknown form or size of weights files, before an earlier export is deleted.

    Raises LaminaError if one is unknown, or the form has no place for the variant. The message says what may be
    written.
    """
    form, shard = (environment.get(f"LAMINA_EXPORT_{name}") for name in ("FORM", "SHARD"))
    if form and form not in EXPORTED_AS:
        raise LaminaError(
            f"FORM={form}: there is no such form of an export. {nearest(form, EXPORTED_AS)}"
        )
    if form == "gguf":
        selector = config.selectors[variant.selector]
        check_cut(
            variant, config.models[variant.model].source, selector.units, bool(selector.donors)
        )
    if shard and not re.fullmatch(r"[1-9]\d*[KMG]B", shard):
        raise LaminaError(
            f"SHARD={shard} is no size. Write a number with KB, MB or GB, such as SHARD=2GB."
        )


def check_variant(config: Configuration, variant: Variant) -> None:
    """Refuse a variant that nothing in the configuration makes.

    Raises LaminaError if a part is unknown. The message names the first such part, and the nearest valid one.
    """
    v, where = variant, f"the variant {variant}"
    for part, section, known in (
        (v.model, "models", list(config.models)),
        (v.calibration, "calibrations", list(config.calibrations)),
        (v.selector, "selectors", list(config.selectors)),
        (v.repair, "repairs", ["none", *config.repairs]),
        (v.healing, "healings", ["none", *config.healings]),
    ):
        if part not in known:
            other = (
                " For another study's, write CONFIG=config/NAME.yaml before make."
                if part == v.model
                else ""
            )
            raise LaminaError(
                f"{where}: '{part}' is not defined under `{section}`. {nearest(part, known)}{other}"
            )
    _check_size(config, variant, where)
    if v.healing != "none" and v not in studies.variants(config):
        raise LaminaError(
            f"{where}: no study heals it, and to train it for an export alone would leave it without benchmarks. Add "
            f"'{v.healing}' to `healings` of a study that has it otherwise, or write none for its healing."
        )


def _check_size(config: Configuration, v: Variant, where: str) -> None:
    selector, layers = config.selectors[v.selector], config.models[v.model].layers
    largest = selector.largest_removal(layers) if layers is not None else None
    if v.is_base:
        raise LaminaError(
            f"{where}: removed=0 is the unpruned model, its own checkpoint. Write removed=1 or more."
        )
    if largest is not None and v.removed > largest:
        raise LaminaError(
            f"{where}: selector '{v.selector}' can remove at most {largest} of the {layers} layers of '{v.model}', not "
            f"{v.removed}. Write removed={largest} or less."
        )
    searched = studies.searches(config).get((v.model, v.calibration, v.selector), [])
    if selector.SEARCHES and v.removed not in searched:
        raise LaminaError(
            f"{where}: no study searches '{v.selector}' for {v.removed} units. Add {v.removed} to `removed` of a study"
            f"{_or_write(v.removed, searched)}."
        )
    fitted = studies.sizes(config, v.model, v.calibration, v.selector, v.repair)
    if v.repair != "none" and v.removed not in fitted:
        raise LaminaError(
            f"{where}: no study fits repair '{v.repair}' to removed={v.removed} of {v.key}. "
            f"Add {v.removed} to `removed` (and '{v.repair}' to `repairs`) of a study"
            f"{_or_write(v.removed, fitted)}."
        )


def _or_write(removed: int, sizes: Sequence[int]) -> str:
    near = min(sizes, key=lambda size: abs(size - removed), default=None)
    return "" if near is None else f", or write removed={near}"

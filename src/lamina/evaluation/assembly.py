"""The files behind a variant, and variants materialised in turn from one base model."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.repair import patch
from lamina.repair.protocol import Fitted
from lamina.store import checksum as seal
from lamina.study import paths
from lamina.study.variant import Variant


class Parts(NamedTuple):
    """The parts from which `materialise` makes a variant; all None for the unpruned model. `adapter` is a folder."""

    plan: Mapping[str, Any] | None
    patches: Mapping[Boundary, Fitted] | None
    adapter: str | None


def plan(variant: Variant, results: str | Path = paths.RESULTS) -> dict[str, Any] | None:
    """The plan behind a variant, None for the unpruned model; a plan without units was refused."""
    file = paths.variant_files(variant, results).plan
    return seal.read_json(file) if file else None


def refused(variant: Variant, results: str | Path = paths.RESULTS) -> str | None:
    """Why a variant does not exist: its plan or the repair of its plan was refused. None if the variant exists."""
    removal, file = plan(variant, results), paths.variant_files(variant, results).patch
    if removal is not None and not removal["units"]:
        return str(removal["refused"])
    return patch.refused(file, variant.removed) if file else None


def read(variant: Variant, results: str | Path = paths.RESULTS) -> Parts:
    """The contents of a variant's files under `results`. Raises LaminaError if the variant was refused."""
    if reason := refused(variant, results):
        raise LaminaError(f"there is no {variant}. {reason}")
    files, removal = paths.variant_files(variant, results), plan(variant, results)
    return Parts(
        removal, patch.load(files.patch, variant.removed) if files.patch else None, files.adapter
    )


def read_all(
    variants: Iterable[Variant], results: str | Path = paths.RESULTS
) -> Iterator[tuple[Variant, Parts]]:
    """Each variant that was not refused, with the contents of its files, one at a time."""
    return (
        (variant, read(variant, results)) for variant in variants if not refused(variant, results)
    )


def in_turn(
    base: PreTrainedModel, variants: Iterable[Variant], results: str | Path = paths.RESULTS
) -> Iterator[tuple[Variant, PreTrainedModel]]:
    """Each variant that was not refused, one at a time."""
    for variant, parts in read_all(variants, results):
        yield variant, materialise(base, parts.plan, parts.patches, parts.adapter)


def title(variant: Variant) -> str:
    """The name of a variant in messages."""
    return f"the model '{variant.model}'" if variant.is_base else f"the variant {variant}"

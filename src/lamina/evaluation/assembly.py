"""The files of a variant, and variants materialised one after the other from one base model."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lamina import paths
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.repair import patch
from lamina.repair.protocol import Fitted
from lamina.store import checksum
from lamina.variant import Variant


class Parts(NamedTuple):
    """What `materialise` makes a variant of; all None for the base model."""

    plan: Mapping[str, Any] | None
    patches: Mapping[Boundary, Fitted] | None
    adapter: str | None
    """A folder."""


def read_plan(variant: Variant, results: str | Path = paths.RESULTS) -> dict[str, Any] | None:
    """The plan of a variant; None for the base model. A plan without units was refused."""
    path = paths.variant_files(variant, results).plan
    return checksum.read_json(path) if path else None


def find_refusal(variant: Variant, results: str | Path = paths.RESULTS) -> str | None:
    """Why a variant does not exist: its plan, or the repair of its plan, was refused.

    None if the variant exists.
    """
    variant_plan = read_plan(variant, results)
    if variant_plan is not None and not variant_plan["units"]:
        return str(variant_plan["refused"])
    patch_path = paths.variant_files(variant, results).patch
    return patch.patch_refusal(patch_path, variant.removed) if patch_path else None


def read_parts(variant: Variant, results: str | Path = paths.RESULTS) -> Parts:
    """The contents of a variant's files under `results`.

    Raises LaminaError if the variant was refused.
    """
    if reason := find_refusal(variant, results):
        raise LaminaError(f"there is no {variant}. {reason}")
    files = paths.variant_files(variant, results)
    patches = patch.read_patch(files.patch, variant.removed) if files.patch else None
    return Parts(read_plan(variant, results), patches, files.adapter)


def read_all_parts(
    variants: Iterable[Variant], results: str | Path = paths.RESULTS
) -> Iterator[tuple[Variant, Parts]]:
    """Each variant that was not refused, with the contents of its files, one at a time."""
    for variant in variants:
        if not find_refusal(variant, results):
            yield variant, read_parts(variant, results)


def materialise_in_turn(
    base: PreTrainedModel, variants: Iterable[Variant], results: str | Path = paths.RESULTS
) -> Iterator[tuple[Variant, PreTrainedModel]]:
    """Each variant that was not refused, with its model, one at a time."""
    for variant, parts in read_all_parts(variants, results):
        yield variant, materialise(base, parts.plan, parts.patches, parts.adapter)


def name_variant(variant: Variant) -> str:
    """The name of a variant in messages."""
    return f"the model '{variant.model}'" if variant.is_base else f"the variant {variant}"

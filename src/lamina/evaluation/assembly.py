"""Reads the parts of variants from their files, and materialises variants from one base model."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.paths import VariantFiles
from lamina.repairs import patch
from lamina.repairs.protocol import Fitted
from lamina.store import checksum
from lamina.variant import Variant


class Parts(NamedTuple):
    """The parts from which `materialise` builds a variant; all None for the base model."""

    plan: Mapping[str, Any] | None
    patches: Mapping[Boundary, Fitted] | None
    adapter: str | None
    """The folder of an adapter."""


def read_parts(variant: Variant, files: VariantFiles) -> Parts:
    """The contents of a variant's files.

    Raises LaminaError if the variant was refused.
    """
    plan = _read_plan(files)
    if reason := _find_refusal(plan, variant, files):
        raise LaminaError(f"there is no {variant}. {reason}")
    return _add_changes(plan, variant, files)


def read_plans(
    files_by_variant: Mapping[Variant, VariantFiles],
) -> dict[Variant, Mapping[str, Any] | None]:
    """The plan of each variant that exists, None for the base model.

    A variant does not exist if its plan, or the repair of its plan, was refused.
    """
    plans: dict[Variant, Mapping[str, Any] | None] = {}
    for variant, files in files_by_variant.items():
        plan = _read_plan(files)
        if not _find_refusal(plan, variant, files):
            plans[variant] = plan
    return plans


def read_all_parts(
    files_by_variant: Mapping[Variant, VariantFiles],
) -> Iterator[tuple[Variant, Parts]]:
    """Each variant that exists, with the contents of its files, one at a time."""
    for variant, plan in read_plans(files_by_variant).items():
        yield variant, _add_changes(plan, variant, files_by_variant[variant])


def materialise_in_turn(
    base: PreTrainedModel, files_by_variant: Mapping[Variant, VariantFiles]
) -> Iterator[tuple[Variant, PreTrainedModel]]:
    """Each variant that exists, with its model, one at a time."""
    for variant, parts in read_all_parts(files_by_variant):
        yield variant, materialise(base, *parts)


def _read_plan(files: VariantFiles) -> dict[str, Any] | None:
    return checksum.read_json(files.plan) if files.plan else None


def _find_refusal(
    plan: Mapping[str, Any] | None, variant: Variant, files: VariantFiles
) -> str | None:
    """Why a variant does not exist; None if it does. A plan without units was refused."""
    if plan is not None and not plan["units"]:
        return str(plan["refused"])
    return patch.patch_refusal(files.patch, variant.removed) if files.patch else None


def _add_changes(plan: Mapping[str, Any] | None, variant: Variant, files: VariantFiles) -> Parts:
    """The parts of a variant that exists: its plan, its patches and its adapter."""
    patches = patch.read_patch(files.patch, variant.removed) if files.patch else None
    return Parts(plan, patches, files.adapter)


def name_variant(variant: Variant) -> str:
    """The name of a variant in messages."""
    return f"the model '{variant.model}'" if variant.is_base else f"the variant {variant}"

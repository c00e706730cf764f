"""Defines the functions that a module of `lamina.repairs.methods` must have.

Such a module begins with the class of its options, a subclass of `lamina.options.repairs.Repair`.
The module is found by the name of the method, and nothing outside of it knows that name or its
options. It imports torch only inside functions, because the configuration is read without torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from transformers import PreTrainedModel

from lamina.engine.sources import Source
from lamina.models.boundary import Boundary, Patch, Place
from lamina.models.units import is_removal, parse_edit

Tensors = Mapping[str, torch.Tensor]
"""The tensors fitted at one boundary, as in a patch file, under names that the method chooses."""


@dataclass(frozen=True)
class Fit:
    """The result of fitting one boundary."""

    tensors: Tensors
    """The repair, fitted on all samples."""

    validated: Tensors
    """The repair, fitted without the held-out samples. All reported errors are measured with it."""

    facts: Mapping[str, Any]
    """Columns of table `patches` that the method fills.

    These are n_samples, n_tokens and parameters, and if they apply, ridge, rank and the relative
    errors ‖Y - Ŷ‖ / ‖Y‖. Ŷ is the repaired stream; in columns `…_before` it is the pruned model's
    stream.
    """


class RepairMethod(Protocol):
    """The functions of a method's module. `options` is an instance of its class of options."""

    def collect(
        self,
        model: PreTrainedModel,
        sources: Sequence[Source],
        boundaries: Sequence[Boundary],
        options: Any,
        seed: int,
    ) -> Iterator[tuple[Boundary, Any]]:
        """Yield the statistics that `fit` needs, boundary by boundary, from the unpruned model.

        sources: The variant's own calibration is the first one.
        seed: Draws the held-out documents, a share of each source.
        """

    def fit(self, statistics: Any, options: Any) -> Fit:
        """Fit the repair of one boundary."""

    def apply(self, variant: PreTrainedModel, location: Place, tensors: Tensors) -> None:
        """Repair a cut model in place. Only called where `as_patch` returns None.

        The variant shares its parameters with the base model, so the method must change copies of
        them: see `lamina.models.boundary.unshare_parameter`.
        """

    def as_patch(self, tensors: Tensors) -> Patch | None:
        """The repair as a linear map of the stream at its boundary; None if it is no such map."""


def load_method(name: str) -> RepairMethod:
    """Load the module of a repair method."""
    return cast(RepairMethod, import_module(f"lamina.repairs.methods.{name}"))


def unite_boundaries(boundaries_of_plans: Iterable[Sequence[Boundary]]) -> list[Boundary]:
    """The runs of several plans, in order, each once."""
    boundaries: set[Boundary] = set()
    return sorted(boundaries.union(*boundaries_of_plans))


def find_refusal(options: Any, boundary: Boundary, edits: Iterable[str]) -> str | None:
    """Why a method cannot repair a run of removed units; None if it can.

    edits: Those of the plan.

    A method may define a function `explain_refusal(boundary)` that says so.
    """
    ends_within_layer = any(position % 1 for position in boundary)
    if ends_within_layer and not options.LINEAR:
        return (
            f"{options.method} changes the layer before a run of removed layers, but this run of "
            "removed sub-layers begins or ends within a layer. Use a repair of the stream "
            f"({options.of_stream()}), or write `units: layer` in the selector."
        )
    moving_edit = _find_move(edits, boundary[0] - 1)
    if moving_edit and not options.LINEAR:
        return (
            f"{options.method} changes the layer before a run of removed layers, but edit "
            f"'{moving_edit}' of this plan moves, repeats or replaces that layer. Use a repair of "
            f"the stream ({options.of_stream()})."
        )
    find_own_refusal = getattr(load_method(options.method), "explain_refusal", None)
    return find_own_refusal(boundary) if find_own_refusal else None


def _find_move(edits: Iterable[str], layer: float) -> str | None:
    """The edit that moves, repeats or replaces a layer; None if there is none."""
    for edit in edits:
        if layer in parse_edit(edit).layers and not is_removal(edit):
            return edit
    return None


@dataclass(frozen=True)
class Fitted:
    """A fitted repair of one boundary, as `materialise` takes it."""

    method: str
    tensors: Tensors

    def apply(self, variant: PreTrainedModel, location: Place) -> None:
        """Repair a cut model in place."""
        patch = self.as_patch()
        if patch is not None:
            patch.apply(variant, location)
        else:
            load_method(self.method).apply(variant, location, self.tensors)

    def as_patch(self) -> Patch | None:
        """The repair as a linear map of the stream; None if it is not a linear map."""
        return load_method(self.method).as_patch(self.tensors)

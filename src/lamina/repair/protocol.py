"""What every repair is: a module `lamina.repair.methods.{method}` with four functions, found by its name.

The name and the options of a method are a class at the top of its module, a subclass of `lamina.config.repairs`'
`Repair`; nothing outside the module knows them. Adding a repair is one module, which imports torch inside functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from transformers import PreTrainedModel

from lamina.engine.sources import Source
from lamina.models.boundary import Boundary, Patch, Place
from lamina.modules import load

Tensors = Mapping[str, torch.Tensor]
"""What was fitted for one boundary, by the method's own names, as it stands in a patch file."""


@dataclass(frozen=True)
class Fit:
    """The result of `fit` for one boundary."""

    tensors: Tensors  # the repair, fitted on all samples
    validated: Tensors  # the repair, fitted without the held-out samples; every reported error is measured with it
    # Columns of table `patches` that the method fills: n_samples, n_tokens, added parameters, and where they apply
    # ridge, rank and errors ‖Y - Ŷ‖ / ‖Y‖. Ŷ is the stream of the pruned model (`_before`) or the repaired stream.
    facts: Mapping[str, Any]


class Repair(Protocol):
    """The functions of a method's module. `options` is an instance of its class of options."""

    def collect(
        self,
        model: PreTrainedModel,
        sources: Sequence[Source],
        boundaries: Sequence[Boundary],
        options: Any,
        seed: int,
    ) -> Iterator[tuple[Boundary, Any]]:
        """The statistics that `fit` needs, boundary by boundary, from the unpruned model.

        The variant's own calibration is the first source; `seed` draws the held-out documents, a share of each.
        """

    def fit(self, statistics: Any, options: Any) -> Fit:
        """Fit one boundary."""

    def apply(self, variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
        """Repair a cut model, for a method without a patch. It shares its parameters with the base, so change none in
        place, see `boundary.own`."""

    def as_patch(self, tensors: Tensors) -> Patch | None:
        """The repair inside a pass over the unpruned model, as a linear map of the stream at its boundary; None if it
        is not such a map."""


def method(name: str) -> Repair:
    return cast(Repair, load(f"lamina.repair.methods.{name}"))


def refused(options: Any, boundary: Boundary) -> str | None:
    """Why a method cannot repair a run, by its function `refused(boundary)` if it has one; None if it can."""
    if not options.LINEAR and any(place % 1 for place in boundary):
        return (
            f"{options.method} changes weights before removed layers, and a run of halves begins or ends within a "
            f"layer. Use a repair of the stream: {options.of_stream()}, or units: layer in the selector."
        )
    says = getattr(method(options.method), "refused", None)
    return says(boundary) if says else None


@dataclass(frozen=True)
class Fitted:
    """A fitted repair of one boundary, as `materialise` takes it."""

    method: str
    tensors: Tensors

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Repair a cut model at a place."""
        if patch := self.as_patch():
            patch.apply(variant, place)
        else:
            method(self.method).apply(variant, place, self.tensors)

    def as_patch(self) -> Patch | None:
        """The repair as a linear map inside a pass; None if it is not a linear map."""
        return method(self.method).as_patch(self.tensors)

"""What every repair is: a module `lamina.recovery.{method}` with four functions or six, found by its name.

The name and the options of a method stand in `lamina.config.recoveries`; nothing outside the module knows them. Adding
a repair is one module and one class of options.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.models.boundary import Boundary, Patch, Place
from lamina.modules import load
from lamina.streams import taps
from lamina.streams.sources import Source

Tensors = Mapping[str, torch.Tensor]
"""What was fitted for one boundary, by the method's own names, as it stands in a patch file."""


@dataclass(frozen=True)
class Fit:
    """What `fit` returns for one boundary.

    Attributes
    ----------
    tensors : the repair, fitted on all samples.
    validated : the same fitted without the held-out samples; every reported error is measured with this one.
    facts : columns of table `patches` that the method fills: n_samples, n_tokens, parameters added, and as far as they
        apply ridge, rank and errors ‖Y - Ŷ‖ / ‖Y‖, Ŷ being the stream as the pruned model leaves it (`_before`) or as
        the repair makes it.
    """

    tensors: Tensors
    validated: Tensors
    facts: Mapping[str, Any]


class Collector(Protocol):
    """Collects the statistics of boundaries while a pass goes over the samples."""

    places: list[int]
    outputs: list[nn.Module]

    def size(self, channels: int) -> int:
        """Bytes of the statistics of one boundary."""

    def add(self, batch: taps.Batch, streams: Mapping[int, torch.Tensor], held: torch.Tensor, weight: float) -> None:
        """Add a batch, see `lamina.streams.sources.Consumer`; its `outputs` are those of `outputs`, in that order."""

    def taken(self, boundary: Boundary, samples: int) -> Any:
        """The statistics of one boundary after a pass over so many samples; they are not kept."""


class Repair(Protocol):
    """The functions of a method's module. `options` is an instance of its class in `lamina.config.recoveries`.

    Whether an export of the repaired variant is stock or brings code is not declared: it follows from what `apply`
    leaves in the model.
    """

    def collect(
        self,
        model: PreTrainedModel,
        sources: Sequence[Source],
        boundaries: Sequence[Boundary],
        options: Any,
        seed: int,
    ) -> Iterator[tuple[Boundary, Any]]:
        """The statistics that `fit` needs, boundary by boundary, from the unpruned model.

        The variant's own calibration is the first source; `seed` holds documents out, a share of each.
        """

    def collected(self, options: Any) -> str:
        """The name of what is collected, by which it is collected once for several recoveries. Only a method whose
        options say `one_pass` has this function and the next."""

    def collector(self, model: PreTrainedModel, boundaries: Sequence[Boundary], options: Any) -> Collector:
        """What collects the statistics of `collect` in a pass that several recoveries share."""

    def fit(self, statistics: Any, options: Any) -> Fit:
        """Fit one boundary."""

    def apply(self, variant: PreTrainedModel, place: Place, tensors: Tensors) -> None:
        """Repair a cut model, which shares its parameters with the base: change none in place, see `variant.own`."""

    def as_patch(self, tensors: Tensors) -> Patch | None:
        """What the repair is inside a pass over the unpruned model: a linear map of the stream at its boundary, or
        None where it is something else."""


def method(name: str) -> Repair:
    """The module of a method."""
    return cast(Repair, load(f"lamina.recovery.{name}"))


def refused(repair: Repair, boundary: Boundary) -> str | None:
    """Why a method cannot repair a run, and the remedy; None if it can.

    A method that cannot repair every run says so in a function `refused(boundary)`: a plan with such a run gets no
    patch, and those of other sizes do.
    """
    says = getattr(repair, "refused", None)
    return says(boundary) if says else None


@dataclass(frozen=True)
class Fitted:
    """A fitted repair of one boundary, as `materialise` takes it."""

    method: str
    tensors: Tensors

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Repair a cut model at a place."""
        method(self.method).apply(variant, place, self.tensors)

    def as_patch(self) -> Patch | None:
        """As a linear map inside a pass, None where it is none."""
        return method(self.method).as_patch(self.tensors)

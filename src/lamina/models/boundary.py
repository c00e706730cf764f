"""What variants are made of: copies that share a model's parameters, and repairs of the stream at a boundary."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.export import modeling_lamina
from lamina.models.export.modeling_lamina import patch_dtype
from lamina.models.structure import family_of, final_norm_of, layers_of
from lamina.models.surgery import kept_layers, runs
from lamina.models.units import parse

Boundary = tuple[float, float]
"""(start, end): layers start … end-1 of the base model are gone as one run; 3.5 is behind the attention of layer 3.

Where a run ends behind an attention, its layer has none left. So a patch acts on the stream that enters layer ⌊end⌋.
"""


@dataclass(frozen=True)
class Place:
    """Where a run of units was, seen from the model without it."""

    boundary: Boundary
    position: int  # how many of the variant's layers stand before it; the number of the one behind, if there is one

    @classmethod
    def of(cls, boundary: Boundary, kept: Sequence[int]) -> "Place":
        """The place of a run in a variant that has the `kept` layers."""
        return cls(boundary, sum(layer < int(boundary[1]) for layer in kept))


class Repairing(Protocol):
    """A repair of a cut model at a boundary: a `Patch`, or a fitted repair."""

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Repair a variant. It shares its parameters with the base model, so none of them may change."""


@dataclass(frozen=True, eq=False)
class Patch:
    """A repair of the residual stream h (tokens, C) at a boundary: h <- h + h M + `bias`.

    M is `operator` (C, C), or the product of `down` (C, r) and `up` (r, C); `bias` is (C,) or None.
    """

    operator: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    down: torch.Tensor | None = None
    up: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What the patch is kept as: those of its tensors that it has, by name."""
        return {
            name: part
            for name in modeling_lamina.PARTS
            if (part := getattr(self, name)) is not None
        }

    @property
    def matrix(self) -> torch.Tensor:
        """M (C, C), which no pass needs."""
        return reduce(torch.matmul, (part for name, part in self.tensors.items() if name != "bias"))

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Make the layer or the final norm behind the boundary apply the patch to its input, and keep it.

        Raises LaminaError if the run reaches the end of a model without a final norm.
        """
        layers = layers_of(variant)
        module = layers[place.position] if place.position < len(layers) else final_norm_of(variant)
        if module is None:
            raise _no_place(variant, place.boundary)
        weight = next(module.parameters(), next(iter(self.tensors.values())))
        modeling_lamina.patch_before(module, self.to(weight.device, weight.dtype).tensors)

    def repaired(self, stream: torch.Tensor) -> torch.Tensor:
        """The stream (..., C) behind the patch."""
        return modeling_lamina.repair(stream, self.tensors)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Patch":
        """This patch on a device, beside weights of a dtype."""
        return replace(
            self,
            **{name: part.to(device, patch_dtype(dtype)) for name, part in self.tensors.items()},
        )


def share(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the module tree and the configuration whose parameters and buffers are the model's own tensors."""
    memo: dict[int, Any] = {
        id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())
    }
    return copy.deepcopy(model, memo)


def own_tensors(model: PreTrainedModel) -> list[torch.Tensor]:
    """Parameters and patches, tied ones once."""
    return [*model.parameters(), *patch_tensors(model).values()]


def patch_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors of a variant's patches, by the names of their buffers."""
    return {
        name: part
        for name, part in model.named_buffers()
        if name.rpartition(".")[2].startswith("patch_")
    }


def own(module: nn.Module, name: str) -> nn.Parameter:
    """A copy of a module's parameter, put in its place. The base model does not share it, so it may change."""
    copied = nn.Parameter(getattr(module, name).detach().clone(), requires_grad=False)
    setattr(module, name, copied)
    return copied


def own_all(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Copies of all parameters of a variant, put in their places, by name; tied parameters stay tied."""
    copies = {
        weight: nn.Parameter(weight.detach().clone(), requires_grad=False)
        for weight in model.parameters()
    }
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, copies[weight])
    return dict(model.named_parameters())


def check_patches(
    model: PreTrainedModel, units: Sequence[str], patches: Mapping[Boundary, Patch]
) -> None:
    """Refuse patches that a materialised variant would refuse; `model` is the unpruned base model.

    Raises LaminaError if the patches do not belong to the runs that `units` leave, or one of them has no place.
    """
    check_boundaries(model, units, patches)
    last = max(kept_layers(model, units), default=-1)
    for boundary in patches:
        if boundary[1] > last and final_norm_of(model) is None:
            raise _no_place(model, boundary)


def check_boundaries(
    model: PreTrainedModel, units: Sequence[str], repairs: Mapping[Boundary, Any]
) -> None:
    """Refuse repairs that do not belong to the runs that `units` leave, by a LaminaError."""
    if family_of(model).stream_norm and any(
        parse(unit)[1] in ("attention", "mlp") for unit in units
    ):
        raise LaminaError(
            f"a norm stands on the stream of the model family '{family_of(model).name}', which runs also where halves "
            "went, so no repair fits removed halves of it. Write repairs: [none], or units: layer in the selector."
        )
    boundaries = runs(units, len(layers_of(model)))
    if set(repairs) != set(boundaries):
        raise LaminaError(
            f"the patch repairs boundaries {sorted(repairs)} but the plan leaves {boundaries}. "
            "The patch belongs to another plan: run fit_patch again."
        )


def _no_place(model: PreTrainedModel, boundary: Boundary) -> LaminaError:
    return LaminaError(
        f"the patch at {boundary[0]}-{boundary[1]} reaches the end of a model without a final norm, so there is no "
        f"place for it (family '{family_of(model).name}'). Protect the last layer: protect: [-1]."
    )


def assert_finite(values: torch.Tensor, name: str, stage: str) -> None:
    """Refuse NaN by a LaminaError, which names the model and the stage in which it happened."""
    if torch.isnan(values).any():
        raise LaminaError(
            f"{name} gives NaN during {stage}. Its numbers overflow in {values.dtype}: "
            "write dtype: float32 (or bfloat16) for this model."
        )

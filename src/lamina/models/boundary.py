"""What variants are made of: shared parameters, and repairs of the stream at a boundary."""

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
from lamina.models.structure import family_of, final_norm_of, layers_of
from lamina.models.surgery import find_runs, steps_of
from lamina.models.units import SUBLAYERS, Step, list_visits, parse_unit

Boundary = tuple[float, float]
"""(start, end): layers start … end-1 of the base model are removed as one run.

3.5 is after the attention of layer 3. If a run ends after an attention, its last layer has no
attention left, so a patch acts on the stream that enters layer ⌊end⌋.
"""


@dataclass(frozen=True)
class Place:
    """Where a run of units was, seen from the model without it."""

    boundary: Boundary
    position: int
    """Number of the variant's layers before the run: the index of the layer after it, if any."""

    @classmethod
    def of(cls, boundary: Boundary, steps: Sequence[Step]) -> "Place":
        """The location of a run in a variant that runs these steps."""
        _, end = boundary
        steps_before = [*steps[: int(end)], steps[int(end)]._replace(visit=None)]
        return cls(boundary, len(list_visits(steps_before)))


class Repairing(Protocol):
    """A repair of a cut model at a boundary: a `Patch`, or a fitted repair."""

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Repair a variant.

        The variant shares its parameters with the base model, so none may be changed in place.
        """


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
        """The tensors of the patch by name, as they are stored."""
        tensors: dict[str, torch.Tensor] = {}
        for name in modeling_lamina.PARTS:
            tensor = getattr(self, name)
            if tensor is not None:
                tensors[name] = tensor
        return tensors

    @property
    def matrix(self) -> torch.Tensor:
        """M (C, C). No pass needs it."""
        factors = [tensor for name, tensor in self.tensors.items() if name != "bias"]
        return reduce(torch.matmul, factors)

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Make the layer or the final norm after the boundary apply the patch to its input.

        Raises LaminaError if the run reaches the end of a model without a final norm.
        """
        layers = layers_of(variant)
        module = layers[place.position] if place.position < len(layers) else final_norm_of(variant)
        if module is None:
            raise _no_final_norm(variant, place.boundary)
        neighbour = next(module.parameters(), next(iter(self.tensors.values())))
        patch = self.to(neighbour.device, neighbour.dtype)
        modeling_lamina.patch_before(module, patch.tensors)

    def repaired(self, stream: torch.Tensor) -> torch.Tensor:
        """The stream (..., C) after the patch."""
        return modeling_lamina.repair(stream, self.tensors)

    def to(self, device: torch.device, weight_dtype: torch.dtype) -> "Patch":
        """This patch on a device, in the dtype that suits weights of `weight_dtype`."""
        patch_dtype = modeling_lamina.patch_dtype(weight_dtype)
        moved = {name: tensor.to(device, patch_dtype) for name, tensor in self.tensors.items()}
        return replace(self, **moved)


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the module tree and the configuration that shares all parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    return copy.deepcopy(model, memo)


def unshare_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """Replace a module's parameter by a copy that may change, since no base model shares it."""
    copied = _copy_parameter(getattr(module, name))
    setattr(module, name, copied)
    return copied


def unshare_parameters(
    model: PreTrainedModel, parts_layers: bool = False
) -> dict[str, nn.Parameter]:
    """Replace all parameters of a variant by copies; return these by name.

    Tied parameters stay tied.

    parts_layers: Whether a layer that runs again gets its own parameters for each run.
    """
    copies = {weight: _copy_parameter(weight) for weight in model.parameters()}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, copies[weight])
    if parts_layers:
        _part_layers(model)
    return dict(model.named_parameters())


def _part_layers(model: PreTrainedModel) -> None:
    """Give every layer that shares parameters with an earlier one copies of them."""
    earlier_weights: set[nn.Parameter] = set()
    for layer in layers_of(model):
        shared_weights = earlier_weights.intersection(layer.parameters())
        for module in layer.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                if weight in shared_weights:
                    setattr(module, name, _copy_parameter(weight))
        earlier_weights.update(layer.parameters())


def _copy_parameter(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone(), requires_grad=False)


def weights_and_patches(model: PreTrainedModel) -> list[torch.Tensor]:
    """The parameters of a variant, tied ones once, and the tensors of its patches."""
    return [*model.parameters(), *patch_tensors(model).values()]


def patch_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors of a variant's patches, by the names of their buffers."""
    tensors: dict[str, torch.Tensor] = {}
    for full_name, buffer in model.named_buffers():
        if full_name.rpartition(".")[2].startswith("patch_"):
            tensors[full_name] = buffer
    return tensors


def check_patches(
    model: PreTrainedModel, units: Sequence[str], patches: Mapping[Boundary, Patch]
) -> None:
    """Refuse patches that a materialised variant of the base model would refuse.

    Raises LaminaError if the patches do not match the runs of removed `units`, or if one of them
    would come after the last layer of a model without a final norm.
    """
    check_boundaries(model, units, patches)
    steps = steps_of(model, units)
    depth = len(list_visits(steps))
    for boundary in patches:
        if Place.of(boundary, steps).position == depth and final_norm_of(model) is None:
            raise _no_final_norm(model, boundary)


def check_boundaries(
    model: PreTrainedModel, units: Sequence[str], repairs: Mapping[Boundary, Any]
) -> None:
    """Raise a LaminaError for repairs that do not match the runs of removed `units`."""
    family = family_of(model)
    removes_sublayer = any(parse_unit(unit)[1] in SUBLAYERS for unit in units)
    if family.stream_norm and removes_sublayer:
        raise LaminaError(
            f"the model family '{family.name}' normalises the stream itself, even where sub-layers "
            "were removed, so no repair fits them. Write repairs: [none], or units: layer in the "
            "selector."
        )
    boundaries = find_runs(units, len(layers_of(model)))
    if set(repairs) != set(boundaries):
        raise LaminaError(
            f"the patch repairs boundaries {sorted(repairs)} but the plan leaves {boundaries}. "
            "The patch belongs to another plan: run fit_patch again."
        )


def _no_final_norm(model: PreTrainedModel, boundary: Boundary) -> LaminaError:
    start, end = boundary
    return LaminaError(
        f"the patch at {start}-{end} is at the end of the model, where the final norm would apply "
        f"it, but the family '{family_of(model).name}' has none. Protect the last layer: "
        "protect: [-1]."
    )


class NotFiniteError(LaminaError):
    """The numbers of a model are NaN."""


def assert_finite(values: torch.Tensor, name: str, stage: str) -> None:
    """Raise a NotFiniteError for NaN; it names the model and the stage."""
    if torch.isnan(values).any():
        raise NotFiniteError(
            f"{name} gives NaN during {stage}. Its numbers overflow in {values.dtype}: "
            "write dtype: float32 (or bfloat16) for this model."
        )

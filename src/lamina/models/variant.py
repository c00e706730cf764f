"""A variant in memory: base model, minus a plan's units, plus patches, plus an adapter.

The base model is left as it was: a variant copies the module structure and shares every parameter it does not change,
so that one load serves any number of variants.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import modeling_lamina
from lamina.models.modeling_lamina import patch_dtype
from lamina.models.structure import family_of, final_norm_of, layers_of, projection_paths
from lamina.models.surgery import kept_layers, remove, removed_layers, runs

Boundary = tuple[int, int]
"""(start, end): layers start … end-1 of the base model are gone as one run."""


@dataclass(frozen=True)
class Place:
    """Where a run of layers was, seen from the model without it.

    Attributes
    ----------
    boundary : (start, end) in base numbering.
    position : number of the variant's layers before the boundary; the layer that follows it, if one does, is
        `layers_of(variant)[position]`.
    """

    boundary: Boundary
    position: int


class Repairing(Protocol):
    """Whatever repairs a cut model at a boundary: a `Patch`, or a fitted recovery."""

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Repair a variant that shares its parameters with the base model, of which none may change."""


@dataclass(frozen=True, eq=False)
class Patch:
    """A repair of the residual stream h (tokens, C) at a boundary: h <- h + h `operator` + `bias`.

    `operator` is (C, C), `bias` (C,) or None, both float32.
    """

    operator: torch.Tensor
    bias: torch.Tensor | None = None

    def apply(self, variant: PreTrainedModel, place: Place) -> None:
        """Make the layer or the final norm that follows apply it.

        Raises
        ------
        LaminaError
            If the run reaches the end of a model without a final norm.
        """
        layers, norm = layers_of(variant), final_norm_of(variant)
        if place.position < len(layers):
            patch_before(layers[place.position], self)
        elif norm is not None:
            patch_before(norm, self)
        else:
            raise _no_place(variant, place.boundary)


def share(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the module tree and the configuration whose parameters and buffers are the model's own tensors."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = tensor
    return copy.deepcopy(model, memo)


def own(module: nn.Module, name: str) -> nn.Parameter:
    """A copy of a module's parameter, put in its place: it may be changed, as the base model does not share it."""
    copied = nn.Parameter(getattr(module, name).detach().clone(), requires_grad=False)
    setattr(module, name, copied)
    return copied


def materialise(
    model: PreTrainedModel,
    plan: Mapping[str, Any] | None,
    patches: Mapping[Boundary, Repairing] | None = None,
    adapter: str | Path | None = None,
) -> PreTrainedModel:
    """The variant as a plain transformers model in evaluation mode; `model` itself is not changed.

    Parameters
    ----------
    model : the unpruned base model.
    plan : a plan with its `units`; None gives the base model itself (shared).
    patches : one repair per contiguous run of removed layers, keyed by boundary in base numbering.
    adapter : folder with a PEFT LoRA adapter fitted on the same plan and patches. It is merged into copies of the
        weights it changes.

    Raises
    ------
    LaminaError
        If the plan was refused, if patches and plan do not fit together, or if the adapter belongs to another variant.
    """
    variant = share(model)
    if plan is None:
        return variant
    if plan.get("refused") or not plan["units"]:
        raise LaminaError(f"the plan removes nothing: {plan.get('refused') or 'it has no units'}")
    remove(variant, plan["units"])
    if patches is not None:
        _check_boundaries(model, plan["units"], patches)
        kept = kept_layers(model, plan["units"])
        for boundary, repair in sorted(patches.items()):
            repair.apply(variant, Place(boundary, sum(layer < boundary[1] for layer in kept)))
    if adapter is not None:
        variant = _adapted(variant, Path(adapter))
    if any(modeling_lamina.describe(variant).values()):
        _refuse_plain_saving(variant)
    return variant.eval()


def check_patches(model: PreTrainedModel, units: Sequence[str], patches: Mapping[Boundary, Patch]) -> None:
    """Refuse patches that a materialised variant would refuse; `model` is the unpruned base model.

    Raises
    ------
    LaminaError
        If they do not belong to the runs that `units` leave, or one has no place.
    """
    _check_boundaries(model, units, patches)
    last = max(kept_layers(model, units), default=-1)
    for boundary in patches:
        if boundary[1] > last and final_norm_of(model) is None:
            raise _no_place(model, boundary)


def _check_boundaries(model: PreTrainedModel, units: Sequence[str], repairs: Mapping[Boundary, Repairing]) -> None:
    boundaries = runs(removed_layers(units), len(layers_of(model)))
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


def patch_before(module: nn.Module, patch: Patch) -> None:
    """Make `module` (a layer or the final norm) apply a patch to its input; the patch moves and is saved with it."""
    weight = next(module.parameters(), patch.operator)
    to = (weight.device, patch_dtype(weight.dtype))
    bias = None if patch.bias is None else patch.bias.to(*to)
    modeling_lamina.patch_before(module, patch.operator.to(*to), bias)


class _Special:
    """Mixed into the class of a variant that a stock checkpoint cannot hold."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: transformers would save the patch and ignore it on reload.

        Raises
        ------
        LaminaError
            Always.
        """
        raise LaminaError(
            "a plain save_pretrained of a variant with patches or removed halves would lose them on reload. Write it "
            "with lamina.models.export.save(model, folder), or with `make export VARIANT=…`."
        )


def _refuse_plain_saving(variant: PreTrainedModel) -> None:
    kind = type(variant)
    variant.__class__ = type(kind.__name__, (_Special, kind), {"__module__": kind.__module__})


def _adapted(variant: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge a LoRA adapter, after giving the variant its own copy of each weight that changes."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from safetensors.torch import load_file

    config, state = LoraConfig.from_pretrained(str(folder)), load_file(folder / "adapter_model.safetensors")
    config.inference_mode = True
    held = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in state}
    stray = sorted(held.symmetric_difference(projection_paths(variant)))
    if stray:
        raise LaminaError(f"the adapter in {folder} belongs to another variant: they differ in '{stray[0]}'.")
    trainable = [(parameter, parameter.requires_grad) for parameter in variant.parameters()]
    adapted = get_peft_model(variant, config)
    for parameter, flag in trainable:
        # PEFT freezes what it adapts, which here belongs to the base model too.
        parameter.requires_grad_(flag)
    set_peft_model_state_dict(adapted, state)
    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            own(module.get_base_layer(), "weight")
    merged = adapted.merge_and_unload()
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def assert_finite(values: torch.Tensor, name: str, stage: str) -> None:
    """Refuse NaN.

    Raises
    ------
    LaminaError
        Naming the model and the stage in which it happened.
    """
    if torch.isnan(values).any():
        raise LaminaError(
            f"{name} gives NaN during {stage}. Its numbers overflow in {values.dtype}: "
            "write dtype: float32 (or bfloat16) for this model."
        )

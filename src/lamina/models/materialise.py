"""A variant in memory: base model, minus a plan's units, plus patches, plus an adapter.

The base model is left as it was: a variant copies the module structure and shares every parameter it does not change,
so that one load serves any number of variants.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import check as proof
from lamina.models import replacements
from lamina.models.boundary import (
    Boundary,
    Place,
    Repairing,
    check_boundaries,
    patch_tensors,
    share,
    unshare_parameter,
    unshare_parameters,
)
from lamina.models.export import modeling_lamina
from lamina.models.structure import (
    family_of,
    layers_of,
    list_expert_parameters,
    list_linear_modules,
)
from lamina.models.surgery import kept_layers, remove
from lamina.store import checksum as seal
from lamina.store import parquet as store

ADAPTED = (
    "targets"  # key in the metadata of an adapter's weights: what they adapt, by default `mlp`
)
EVERYTHING = "everything"  # value of that key: they replace all weights
SETTINGS = "settings"  # another key there: SHA-256 of adapter_config.json
_PREFIX = "base_model.model."  # PEFT puts it before every name there
# PEFT imports it, and it warns of a kernel for 4 bits that nothing here asks for.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def materialise(
    model: PreTrainedModel,
    plan: Mapping[str, Any] | None,
    patches: Mapping[Boundary, Repairing] | None = None,
    adapter: str | Path | None = None,
) -> PreTrainedModel:
    """The variant as a plain transformers model in evaluation mode; `model` itself is not changed.

    model: the unpruned base model.
    plan: a plan with its `units`, and what its `replacements` are; None gives the base model itself (shared).
    patches: one repair per contiguous run of removed units, keyed by boundary in base numbering.
    adapter: folder that a healing of the same plan and patches wrote. It holds a PEFT LoRA adapter, which is merged
        into copies of the weights that it changes; or trained patches, which replace `patches`; or both; or trained
        weights, which replace the weights of the whole model.

    Raises LaminaError if the plan was refused, the model cannot be cut like this, patches and plan do not fit together,
    or the adapter belongs to another variant.
    """
    variant = share(model)
    if plan is None:
        return variant
    if plan.get("refused") or not plan["units"]:
        raise LaminaError(f"the plan removes nothing: {plan.get('refused') or 'it has no units'}")
    if plan.get("replacements"):
        replacements.put(variant, model, plan)
    remove(variant, plan["units"])
    kept = kept_layers(model, plan["units"])
    proof.check_cut(
        model,
        [layer for layer in range(len(layers_of(model))) if layer not in kept],
        proof.probe(model),
    )
    if patches is not None:
        check_boundaries(model, plan["units"], patches)
        for boundary, repair in sorted(patches.items()):
            repair.apply(variant, Place.of(boundary, kept))
    if adapter is not None:
        variant = _adapted(variant, Path(adapter))
    if any(modeling_lamina.describe(variant).values()):
        kind = type(variant)
        variant.__class__ = type(kind.__name__, (_Special, kind), {"__module__": kind.__module__})
    return variant.eval()


class _Special:
    """Mixed into the class of a variant that a stock checkpoint cannot hold."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: transformers would save the patch and ignore it on reload.

        Raises LaminaError always.
        """
        raise LaminaError(
            "a plain save_pretrained of a variant with patches or removed halves would lose them on reload. Write it "
            "with lamina.models.export.save.save(model, folder), or with `make export VARIANT=…`."
        )


def _replaced(variant: PreTrainedModel, state: Mapping[str, Any], folder: Path) -> PreTrainedModel:
    """The variant with the weights of `state` in place of all its own."""
    weights = {f"{_PREFIX}{name}": weight for name, weight in unshare_parameters(variant).items()}
    if stray := sorted(weights.keys() ^ state.keys()):
        raise LaminaError(
            f"the weights in {folder} belong to another variant: they differ in '{stray[0]}'."
        )
    for name, weight in weights.items():
        weight.data.copy_(state[name])
    return variant


def _adapted(variant: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Put trained patches in their places and merge a LoRA adapter, with copies of each weight that changes."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from safetensors import safe_open

    file, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    with store.reading(file), safe_open(str(file), framework="pt") as handle:
        metadata = store.tensors_metadata(handle)
        targets = metadata.get(ADAPTED, "mlp")
        state = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    if metadata.get(SETTINGS) not in (None, hashlib.sha256(settings.read_bytes()).hexdigest()):
        raise seal.damaged(folder, f"{settings.name} is not what was written beside the weights")
    if targets == EVERYTHING:
        return _replaced(variant, state, folder)
    patches = {name: state.pop(name) for name in list(state) if ".lora_" not in name}
    updated = {name.removeprefix(_PREFIX).partition(".lora_")[0] for name in state}
    buffers = {f"{_PREFIX}{name}" for name in patch_tensors(variant)}
    stray = (updated ^ adaptable(variant, targets).holders) | (
        buffers ^ patches.keys() if patches else set()
    )
    if stray:
        raise LaminaError(
            f"the adapter in {folder} belongs to another variant: they differ in '{min(stray)}'."
        )
    for name, values in patches.items():
        module, _, buffer = name.removeprefix(_PREFIX).rpartition(".")
        holder = variant.get_submodule(module)
        setattr(holder, buffer, values.to(getattr(holder, buffer)))
    if not state:
        return variant
    config = LoraConfig.from_pretrained(str(folder))
    config.inference_mode = True
    trainable = [(parameter, parameter.requires_grad) for parameter in variant.parameters()]
    with names_as_they_are(variant):
        adapted = get_peft_model(variant, config)
        set_peft_model_state_dict(adapted, state)
    for parameter, flag in trainable:
        # PEFT freezes the weights that it adapts; here they belong to the base model too.
        parameter.requires_grad_(flag)
    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            own_adapted(cast(Any, module))
    merged = adapted.merge_and_unload()
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


@dataclass(frozen=True)
class Adaptable:
    """Full names of linear `modules` and of `parameters` that hold a matrix for each expert."""

    modules: list[str]
    parameters: list[str]

    @property
    def holders(self) -> set[str]:
        """Names of the modules that hold PEFT's updates; PEFT wraps a module once for each of its parameters."""
        stacked = Counter(name.rpartition(".")[0] for name in self.parameters)
        wrapped = {
            f"{name}{'.base_layer' * depth}"
            for name, count in stacked.items()
            for depth in range(count)
        }
        return {*self.modules, *wrapped}


def adaptable(model: PreTrainedModel, targets: str) -> Adaptable:
    """The projections that `targets` names: those of `mlp`, of `attention`, of both (`all`) or of `none`.

    Raises LaminaError if there are none.
    """
    parts = {"all": ("mlp", "attention"), "none": ()}.get(targets, (targets,))
    modules, parameters = (
        [name for part in parts for name in of(model, part)]
        for of in (list_linear_modules, list_expert_parameters)
    )
    targeted = Adaptable(modules, parameters)
    if parts and not targeted.holders:
        other = "attention" if targets == "mlp" else "mlp"
        raise LaminaError(
            f"the {' and '.join(parts)} of the model family '{family_of(model).name}' have no linear modules, and no "
            f"experts stacked in one parameter, that LoRA can adapt. Write targets: {other}, or method: full."
        )
    return targeted


def adapted_weight(layer: nn.Module) -> tuple[nn.Module, str]:
    """The module behind one of PEFT's layers, and the name of the parameter that the update changes."""
    inner: Any = layer
    while hasattr(inner, "base_layer"):
        inner = inner.base_layer
    return inner, getattr(layer, "parameter_name", "weight")


def own_adapted(layer: nn.Module) -> nn.Parameter:
    """Put a copy of the adapted weight in its place, so that an update can be merged; return the shared weight."""
    module, name = adapted_weight(layer)
    shared: nn.Parameter = getattr(module, name)
    unshare_parameter(module, name)
    return shared


@contextmanager
def names_as_they_are(model: PreTrainedModel) -> Iterator[None]:
    """While open, PEFT takes the names of modules as they are, and does not translate them by the model's type.

    In families with experts it would take `gate_proj` for the experts of checkpoints from before they were stacked.
    """
    model.config.__dict__["model_type"] = ""
    try:
        yield
    finally:
        del model.config.__dict__["model_type"]

"""Applies adapters that healings wrote, and finds the weights of a model that PEFT can adapt.

An adapter is a folder with the two files of PEFT. Its tensors are low-rank updates, trained patches
or both, or all weights of a variant.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.boundary import patch_tensors, unshare_parameter, unshare_parameters
from lamina.models.structure import family_of, list_expert_parameters, list_linear_modules
from lamina.store import checksum, parquet

# Keys in the metadata of an adapter's tensors.
TARGETS_KEY = "targets"  # what is adapted, as `find_adaptable` takes it; by default `mlp`
CONFIG_SHA256_KEY = "settings"  # of adapter_config.json
ALL_WEIGHTS = "everything"  # the value of TARGETS_KEY if the tensors replace all weights

_PEFT_PREFIX = "base_model.model."  # PEFT puts it before every name in its file
# PEFT imports bitsandbytes, which warns about a 4-bit kernel that is not used here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class AdaptableWeights:
    """The weights of a model that LoRA can adapt."""

    modules: list[str]
    """Full names of linear modules."""
    parameters: list[str]
    """Full names of parameters that hold a matrix for each expert."""

    @property
    def holders(self) -> set[str]:
        """Names of the modules that hold PEFT's updates.

        PEFT wraps a module once for each of its parameters.
        """
        names = set(self.modules)
        n_parameters = Counter(name.rpartition(".")[0] for name in self.parameters)
        for module_name, count in n_parameters.items():
            for depth in range(count):
                names.add(module_name + ".base_layer" * depth)
        return names


class _StoredAdapter(NamedTuple):
    """What the file of an adapter holds."""

    targets: str
    tensors: dict[str, torch.Tensor]  # by PEFT's names


def find_adaptable(model: PreTrainedModel, targets: str) -> AdaptableWeights:
    """The weights that `targets` names.

    targets: `mlp`, `attention`, both (`all`) or `none`.

    Raises LaminaError if the model has no such weights.
    """
    components = {"all": ("mlp", "attention"), "none": ()}.get(targets, (targets,))
    modules: list[str] = []
    parameters: list[str] = []
    for component in components:
        modules += list_linear_modules(model, component)
        parameters += list_expert_parameters(model, component)
    if components and not modules and not parameters:
        other = "attention" if targets == "mlp" else "mlp"
        raise LaminaError(
            f"the {' and '.join(components)} of the model family '{family_of(model).name}' have no "
            "linear modules, and no experts stacked in one parameter, that LoRA can adapt. Write "
            f"targets: {other}, or method: full."
        )
    return AdaptableWeights(modules, parameters)


def apply_adapter(variant: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Apply what a healing trained to a variant of its plan and patches; return the variant.

    Trained patches replace the variant's own, low-rank updates are merged. Each weight that changes
    is copied, because the base model shares it.

    Raises LaminaError if the adapter is damaged or belongs to another variant.
    """
    adapter = _read_adapter(folder)
    if adapter.targets == ALL_WEIGHTS:
        _replace_weights(variant, adapter.tensors, folder)
        return variant

    patches: dict[str, torch.Tensor] = {}
    updates: dict[str, torch.Tensor] = {}
    for name, tensor in adapter.tensors.items():
        if ".lora_" in name:
            updates[name] = tensor
        else:
            patches[name] = tensor
    updated_modules = {name.removeprefix(_PEFT_PREFIX).partition(".lora_")[0] for name in updates}
    different = updated_modules ^ find_adaptable(variant, adapter.targets).holders
    if patches:
        different |= {_PEFT_PREFIX + name for name in patch_tensors(variant)} ^ patches.keys()
    if different:
        raise LaminaError(
            f"the adapter in {folder} belongs to another variant: they differ in "
            f"'{min(different)}'."
        )
    _replace_patches(variant, patches)
    return _merge_updates(variant, updates, folder) if updates else variant


def _read_adapter(folder: Path) -> _StoredAdapter:
    from safetensors import safe_open

    file = folder / "adapter_model.safetensors"
    config_file = folder / "adapter_config.json"
    with parquet.explaining_damage(file), safe_open(str(file), framework="pt") as handle:
        metadata = parquet.tensors_metadata(handle)
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    config_sha256 = hashlib.sha256(config_file.read_bytes()).hexdigest()
    if metadata.get(CONFIG_SHA256_KEY) not in (None, config_sha256):
        raise checksum.damaged_file(
            folder, f"{config_file.name} is not what was written together with the weights"
        )
    return _StoredAdapter(metadata.get(TARGETS_KEY, "mlp"), tensors)


def _replace_weights(variant: PreTrainedModel, tensors: Tensors, folder: Path) -> None:
    """Replace all weights of a variant by trained ones.

    If repeated layers were trained as separate copies, there are more tensors than shared weights.
    """
    are_copied = len(tensors) > len(dict(variant.named_parameters()))
    weights: dict[str, nn.Parameter] = {}
    for name, weight in unshare_parameters(variant, are_copied).items():
        weights[_PEFT_PREFIX + name] = weight
    different = sorted(weights.keys() ^ tensors.keys())
    if different:
        raise LaminaError(
            f"the weights in {folder} belong to another variant: they differ in '{different[0]}'."
        )
    for name, weight in weights.items():
        weight.data.copy_(tensors[name])


def _replace_patches(variant: PreTrainedModel, patches: Tensors) -> None:
    for name, tensor in patches.items():
        module_name, _, buffer_name = name.removeprefix(_PEFT_PREFIX).rpartition(".")
        module = variant.get_submodule(module_name)
        setattr(module, buffer_name, tensor.to(getattr(module, buffer_name)))


def _merge_updates(
    variant: PreTrainedModel, updates: dict[str, torch.Tensor], folder: Path
) -> PreTrainedModel:
    """Merge low-rank updates into copies of the weights that they change."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer

    config = LoraConfig.from_pretrained(str(folder))
    config.inference_mode = True
    trainable = [(weight, weight.requires_grad) for weight in variant.parameters()]
    with untranslated_names(variant):
        adapted = get_peft_model(variant, config)
        set_peft_model_state_dict(adapted, updates)
    for weight, requires_grad in trainable:
        # PEFT freezes the weights that it adapts; here they belong to the base model too.
        weight.requires_grad_(requires_grad)

    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            unshare_adapted_weight(cast(Any, module))
    merged = adapted.merge_and_unload()
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def adapted_weight(lora_layer: nn.Module) -> tuple[nn.Module, str]:
    """The module that one of PEFT's layers wraps, and the name of the adapted parameter."""
    wrapped: Any = lora_layer
    while hasattr(wrapped, "base_layer"):
        wrapped = wrapped.base_layer
    return wrapped, getattr(lora_layer, "parameter_name", "weight")


def unshare_adapted_weight(lora_layer: nn.Module) -> nn.Parameter:
    """Replace the adapted weight by a copy that may be merged into; return the shared weight."""
    module, name = adapted_weight(lora_layer)
    shared_weight: nn.Parameter = getattr(module, name)
    unshare_parameter(module, name)
    return shared_weight


@contextmanager
def untranslated_names(model: PreTrainedModel) -> Iterator[None]:
    """While open, PEFT uses the names of modules as they are.

    Otherwise it translates them by model type. In families with experts it would take `gate_proj`
    for the experts of older checkpoints, which were not stacked yet.
    """
    model.config.__dict__["model_type"] = ""
    try:
        yield
    finally:
        del model.config.__dict__["model_type"]

"""Finds the layers, final norm and sub-layers of a loaded model by the properties of its modules.

The layers are in one module list, which is as long as the configuration says. In a layer, a module
whose `forward` takes a mask, positions or a cache can mix tokens, so it counts as attention of some
kind. The other modules that hold matrices are the MLP.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lamina.errors import LaminaError
from lamina.models.families import FAMILIES, FamilyOptions

# Arguments that only modules with access to other tokens have.
_MIXING_ARGUMENTS = frozenset(
    {
        "attention_mask",
        "past_key_values",
        "past_key_value",
        "layer_past",
        "cache_params",
        "position_embeddings",
        "position_ids",
        "alibi",
        "position_bias",
        "state",
        "cache_position",
        "rotary_pos_emb",
    }
)
# Names of final norms. Some come before the list of layers in their module.
_FINAL_NORM_NAMES = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


class Family(NamedTuple):
    """What a model's type says about its layers."""

    name: str
    stream_norm: bool
    """A norm acts on the stream itself: a layer without its sub-layers is not the identity."""


class SublayerModule(NamedTuple):
    """A sub-module of a layer that belongs to its attention or its MLP."""

    name: str
    module: nn.Module
    residual: bool
    """The module takes the residual as an argument of that name and adds it itself (BLOOM)."""


class _NestedModule(NamedTuple):
    """A module at any depth inside of a sub-layer."""

    full_name: str
    module: nn.Module
    sublayer: nn.Module


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the decoder, also where a multimodal one wraps it."""
    return model.config.get_text_config(decoder=True)


def family_of(model: PreTrainedModel) -> Family:
    """The family of a loaded model."""
    config = text_config(model)
    option = _family_options(config).stream_norm_unless
    return Family(config.model_type, bool(option) and not getattr(config, option))


def _family_options(config: PretrainedConfig) -> FamilyOptions:
    return FAMILIES.get(config.model_type, FamilyOptions())


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers."""
    return cast(nn.ModuleList, model.get_submodule(_layer_list_name(model)))


def stream_of(output: torch.Tensor | tuple[Any, ...]) -> torch.Tensor:
    """The stream in the output of a layer or sub-layer: the output itself, or its first value."""
    stream: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return stream


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm between the last layer and the output projection; None in models without one."""
    parent_name, _, list_name = _layer_list_name(model).rpartition(".")
    children = dict(model.get_submodule(parent_name).named_children())
    for name in _FINAL_NORM_NAMES:
        if name in children:
            return children[name]

    child_names = list(children)
    after_layers = child_names[child_names.index(list_name) + 1 :]
    norms = [children[name] for name in after_layers if _is_norm(children[name])]
    return norms[0] if len(norms) == 1 else None


def sublayers_of(layer: nn.Module) -> dict[str, tuple[SublayerModule, ...]]:
    """The modules of the sub-layers that a layer has now, by `attention` and `mlp`."""
    sublayers: dict[str, list[SublayerModule]] = {"attention": [], "mlp": []}
    for name, module in layer.named_children():
        # Some norms have gates, which are matrices.
        if _is_norm(module) or isinstance(module, nn.Embedding) or not _has_matrix(module):
            continue
        arguments = set(inspect.signature(module.forward).parameters)
        component = "attention" if arguments & _MIXING_ARGUMENTS else "mlp"
        sublayers[component].append(SublayerModule(name, module, "residual" in arguments))
    return {component: tuple(modules) for component, modules in sublayers.items()}


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() >= 2 for weight in module.parameters())


def why_no_sublayers(model: PreTrainedModel) -> str | None:
    """Why no sub-layer of a model can be removed alone; None if each of them can."""
    config = text_config(model)
    option = _family_options(config).no_sublayers_if
    if option and getattr(config, option):
        return f"with {option}, the output of a norm is the residual"
    for layer_index, layer in enumerate(layers_of(model)):
        missing = [component for component, modules in sublayers_of(layer).items() if not modules]
        if missing:
            return f"layer {layer_index} has no {' and no '.join(missing)} of its own"
    return None


def list_linear_modules(model: PreTrainedModel, component: str) -> list[str]:
    """Full names of the linear modules in one component (`attention`, `mlp`) of a model's layers.

    A state-space mixer (it has a D) counts only with its `in_proj`, because kernels use the weights
    of its other projections without calling them. A router that returns more than a product does
    not count.
    """
    names: list[str] = []
    for name, module, sublayer in _nested_modules(model, component):
        is_called = name.endswith(".in_proj") or not hasattr(sublayer, "D")
        if _is_linear(module) and is_called:
            names.append(name)
    return names


def list_expert_parameters(model: PreTrainedModel, component: str) -> list[str]:
    """Full names of the parameters in one component that hold a matrix for each of the experts."""
    names: list[str] = []
    for name, module, _ in _nested_modules(model, component):
        n_experts = getattr(module, "num_experts", None)
        for parameter_name, weight in module.named_parameters(recurse=False):
            if weight.dim() == 3 and len(weight) == n_experts:
                names.append(f"{name}.{parameter_name}")
    return names


def _nested_modules(model: PreTrainedModel, component: str) -> Iterator[_NestedModule]:
    """Every module inside of one component of the layers that a model has now."""
    list_name = _layer_list_name(model)
    for layer_index, layer in enumerate(layers_of(model)):
        for sublayer in sublayers_of(layer)[component]:
            prefix = f"{list_name}.{layer_index}.{sublayer.name}"
            for name, module in sublayer.module.named_modules(prefix=prefix):
                yield _NestedModule(name, module, sublayer.module)


def _is_linear(module: nn.Module) -> bool:
    """Whether a module returns only the product with its weight.

    A family's own subclass of nn.Linear is tried on a row of zeros.
    """
    if isinstance(module, Conv1D):
        return True
    if not isinstance(module, nn.Linear):
        return False
    if not type(module).forward.__module__.startswith("transformers.models."):
        return True
    with torch.no_grad():
        try:
            product = module(module.weight.new_zeros(1, module.in_features))
        except RuntimeError:  # a grouped projection takes another shape
            return False
    return isinstance(product, torch.Tensor)


# The name of the list of layers in each model. No cut changes it.
_layer_list_names: "WeakKeyDictionary[PreTrainedModel, str]" = WeakKeyDictionary()


def _layer_list_name(model: PreTrainedModel) -> str:
    """Full name of the one module list that is as long as the configuration says."""
    if model not in _layer_list_names:
        _layer_list_names[model] = _find_layer_list(model)
    return _layer_list_names[model]


def _find_layer_list(model: PreTrainedModel) -> str:
    config = text_config(model)
    n_layers = getattr(config, "num_hidden_layers", None)
    names = _lists_of_length(model, n_layers) if n_layers else []
    if len(names) > 1:
        names = _lists_in_decoder(model, names)
    if len(names) != 1:
        raise LaminaError(
            f"the layers of the model family '{config.model_type}' are not found: it has "
            f"{len(names)} module lists of {n_layers} entries where one was expected "
            f"({', '.join(names) or 'none'}). lamina prunes decoders whose layers are in one list."
        )
    return names[0]


def _lists_of_length(model: PreTrainedModel, length: int) -> list[str]:
    """Names of the module lists of a length that are not inside of another such list."""
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == length
    ]
    outer_names: list[str] = []
    for name in names:
        if not any(name.startswith(f"{other}.") for other in names):
            outer_names.append(name)
    return outer_names


def _lists_in_decoder(model: PreTrainedModel, list_names: list[str]) -> list[str]:
    """The lists that belong to the decoder: a model may have towers for images or sound too."""
    decoder = model.get_decoder()
    decoder_name = ""
    for name, module in model.named_modules():
        if module is decoder:
            decoder_name = name
            break
    direct_children = [name for name in list_names if name.rpartition(".")[0] == decoder_name]
    return direct_children or [name for name in list_names if name.startswith(f"{decoder_name}.")]

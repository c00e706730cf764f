"""Where a loaded model keeps its layers, norm, embeddings and sub-layers, found by what its modules are.

Layers stand in one list, as many as the configuration says. In a layer, a module that is called with a
mask, positions or a cache can mix tokens, so it is attention, of whatever kind. The other modules that hold matrices
are the MLP.
"""

import inspect
from collections.abc import Iterator
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lamina.errors import LaminaError
from lamina.models import families

# Only modules that look at other tokens have these arguments.
_MIXES = frozenset(
    "attention_mask past_key_values past_key_value layer_past cache_params position_embeddings position_ids alibi "
    "position_bias state cache_position rotary_pos_emb".split()
)
# Final norms that do not stand behind the list of layers in their module.
_FINAL = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


class Family(NamedTuple):
    """What a model's type says of its layers."""

    name: str
    stream_norm: bool  # a norm stands on the stream itself: a layer without its sub-layers is not the identity


class Half(NamedTuple):
    """A sub-module of a layer that belongs to its attention or its MLP."""

    name: str
    module: nn.Module
    residual: bool  # it gets the residual as an argument of that name and adds it itself (BLOOM)


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the decoder, also where a multimodal one wraps it."""
    return model.config.get_text_config(decoder=True)


def family_of(model: PreTrainedModel) -> Family:
    """The family of a loaded model."""
    config = text_config(model)
    option = families.FAMILIES.get(config.model_type, families.Family()).stream_norm_unless
    return Family(config.model_type, bool(option) and not getattr(config, option))


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers."""
    return cast(nn.ModuleList, model.get_submodule(_layer_list(model)))


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm between the last layer and the output projection, None in the few models without one."""
    parent, _, layers = _layer_list(model).rpartition(".")
    children = dict(model.get_submodule(parent).named_children())
    behind = list(children)[list(children).index(layers) + 1 :]
    norms = [name for name in behind if "norm" in type(children[name]).__name__.lower()]
    norm = next(
        (name for name in _FINAL if name in children), norms[0] if len(norms) == 1 else None
    )
    return children[norm] if norm else None


def halves(layer: nn.Module) -> dict[str, tuple[Half, ...]]:
    """The sub-modules that a layer has now, by `attention` and `mlp`."""
    parts: dict[str, list[Half]] = {"attention": [], "mlp": []}
    for name, module in layer.named_children():
        is_norm = "norm" in type(module).__name__.lower()  # some have gates, which are matrices
        if (
            is_norm
            or isinstance(module, nn.Embedding)
            or all(weight.dim() < 2 for weight in module.parameters())
        ):
            continue
        arguments = set(inspect.signature(module.forward).parameters)
        half = Half(name, module, "residual" in arguments)
        parts["attention" if arguments & _MIXES else "mlp"].append(half)
    return {part: tuple(modules) for part, modules in parts.items()}


def without_halves(model: PreTrainedModel) -> str | None:
    """Why the layers of a model have no halves that could go alone; None if they have."""
    config = text_config(model)
    option = families.FAMILIES.get(config.model_type, families.Family()).no_halves_if
    if option and getattr(config, option):
        return f"with {option}, the output of a norm is the residual"
    for number, layer in enumerate(layers_of(model)):
        parts = halves(layer)
        missing = [part for part in ("attention", "mlp") if not parts[part]]
        if missing:
            return f"layer {number} has no {' and no '.join(missing)} of its own"
    return None


def linear_maps(model: PreTrainedModel, part: str) -> list[str]:
    """Full names of the linear modules in one part (`attention`, `mlp`) of the layers that there are now.

    A state-space mixer (it has a D) counts only with its `in_proj`, because kernels use the weights of its other maps
    without calling them. A router that returns more than a product does not count.
    """
    return [
        name
        for name, module, half in _modules(model, part)
        if _is_linear(module) and (name.endswith(".in_proj") or not hasattr(half, "D"))
    ]


def stacked_maps(model: PreTrainedModel, part: str) -> list[str]:
    """Full names of the parameters in one part of the layers that hold a matrix for each of several experts."""
    return [
        f"{name}.{key}"
        for name, module, _ in _modules(model, part)
        for key, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3 and len(weight) == getattr(module, "num_experts", None)
    ]


def _modules(model: PreTrainedModel, part: str) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Every module in one part of the layers that there are now: its full name, itself, and the half that it is in."""
    for number, layer in enumerate(layers_of(model)):
        for half in halves(layer)[part]:
            for name, module in half.module.named_modules(
                prefix=f"{_layer_list(model)}.{number}.{half.name}"
            ):
                yield name, module, half.module


def _is_linear(module: nn.Module) -> bool:
    """Whether a module returns only the product with its weight; a family's own class is tried on a row of zeros."""
    if not isinstance(module, (nn.Linear, Conv1D)):
        return False
    if not isinstance(module, nn.Linear) or not type(module).forward.__module__.startswith(
        "transformers.models."
    ):
        return True
    with torch.no_grad():
        try:
            product = module(module.weight.new_zeros(1, module.in_features))
        except RuntimeError:  # one of several groups wants another shape
            return False
        return isinstance(product, torch.Tensor)


# Path of the list of layers of each model, which no cut changes.
_lists: "WeakKeyDictionary[PreTrainedModel, str]" = WeakKeyDictionary()


def _layer_list(model: PreTrainedModel) -> str:
    """Path of the one list with as many modules as the configuration says there are layers."""
    if model in _lists:
        return _lists[model]
    config = text_config(model)
    depth = getattr(config, "num_hidden_layers", None)
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth and depth
    ]
    # A list inside of a layer is part of it.
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) > 1:
        # If the model has towers for images or sound, only the list of its decoder counts.
        found = model.get_decoder()
        decoder = next((name for name, module in model.named_modules() if module is found), "")
        own = [name for name in outer if name.rpartition(".")[0] == decoder]
        outer = own or [name for name in outer if name.startswith(f"{decoder}.")]
    if len(outer) != 1:
        raise LaminaError(
            f"the layers of the model family '{config.model_type}' are not found: it has {len(outer)} module lists of "
            f"{depth} entries where one was expected ({', '.join(outer) or 'none'}). lamina prunes decoders whose "
            "layers stand in one list."
        )
    _lists[model] = outer[0]
    return outer[0]

"""Where a loaded model keeps its layers, norm, embeddings and sub-layers, found by what its modules are.

Layers stand in one list, as many as the configuration says. In a layer, a module that is called with a
mask, positions or a cache can mix tokens, so it is attention, of whatever kind. The other modules that hold matrices
are the MLP.
"""

import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple
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


@dataclass(frozen=True)
class Family:
    """Dotted paths from the model.

    Attributes
    ----------
    layers, final_norm, embeddings, head : of the layer list, the norm after it (None if the model has none), the token
        embeddings and the output projection.
    stream_norm : a norm stands on the residual stream itself, after the sum, so that a layer without its sub-layers is
        not the identity.
    """

    name: str
    layers: str
    final_norm: str | None
    embeddings: str
    head: str
    stream_norm: bool


class Half(NamedTuple):
    """A sub-module of a layer that belongs to its attention or its MLP.

    `residual` says that it gets the residual as an argument of that name and adds it itself (BLOOM).
    """

    name: str
    module: nn.Module
    residual: bool


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The configuration of the decoder, also where a multimodal one wraps it."""
    return model.config.get_text_config(decoder=True)


def family_of(model: PreTrainedModel) -> Family:
    """What a loaded model is made of.

    Raises LaminaError if it does not have exactly one list of layers.
    """
    config = text_config(model)
    layers = _layer_list(model, config)
    options = families.FAMILIES.get(config.model_type, families.Family())
    return Family(
        name=config.model_type,
        layers=layers,
        final_norm=_norm_behind(model, layers),
        embeddings=_name_of(model, model.get_input_embeddings()),
        head=_name_of(model, model.get_output_embeddings()),
        stream_norm=bool(options.stream_norm_unless) and not getattr(config, options.stream_norm_unless),
    )


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers."""
    layers = model.get_submodule(_layer_list(model, text_config(model)))
    assert isinstance(layers, nn.ModuleList)
    return layers


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm between the last layer and the output projection, None in the few models without one."""
    path = family_of(model).final_norm
    return None if path is None else model.get_submodule(path)


def halves(layer: nn.Module) -> dict[str, tuple[Half, ...]]:
    """The sub-modules that a layer has now, by `attention` and `mlp`."""
    parts: dict[str, list[Half]] = {"attention": [], "mlp": []}
    for name, module in layer.named_children():
        if isinstance(module, nn.Embedding) or all(weight.dim() < 2 for weight in module.parameters()):
            continue
        if "norm" in type(module).__name__.lower():  # some have gates, which are matrices
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
    path = _layer_list(model, text_config(model))
    return [
        ".".join(step for step in (path, str(number), half.name, name) if step)
        for number, layer in enumerate(layers_of(model))
        for half in halves(layer)[part]
        for name, module in half.module.named_modules()
        if _is_linear(module) and (name == "in_proj" or not hasattr(half.module, "D"))
    ]


def stacked_maps(model: PreTrainedModel, part: str) -> list[str]:
    """Full names of the parameters in one part of the layers that hold a matrix for each of several experts."""
    path = _layer_list(model, text_config(model))
    return [
        ".".join(step for step in (path, str(number), half.name, name, key) if step)
        for number, layer in enumerate(layers_of(model))
        for half in halves(layer)[part]
        for name, module in half.module.named_modules()
        for key, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3 and len(weight) == getattr(module, "num_experts", None)
    ]


def _is_linear(module: nn.Module) -> bool:
    """Whether a module returns only the product with its weight; a family's own class is tried on a row of zeros."""
    if not isinstance(module, (nn.Linear, Conv1D)):
        return False
    if not isinstance(module, nn.Linear) or not type(module).forward.__module__.startswith("transformers.models."):
        return True
    with torch.no_grad():
        try:
            product = module(module.weight.new_zeros(1, module.in_features))
        except RuntimeError:  # one of several groups wants another shape
            return False
        return isinstance(product, torch.Tensor)


# Path of the list of layers of each model, which no cut changes.
_lists: "WeakKeyDictionary[PreTrainedModel, str]" = WeakKeyDictionary()


def _layer_list(model: PreTrainedModel, config: PretrainedConfig) -> str:
    """Path of the one list with as many modules as the configuration says there are layers."""
    if model in _lists:
        return _lists[model]
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
        decoder = _name_of(model, model.get_decoder())
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


def _norm_behind(model: PreTrainedModel, layers: str) -> str | None:
    parent = layers.rpartition(".")[0]
    children = dict(model.get_submodule(parent).named_children())
    behind = list(children)[list(children).index(layers.rpartition(".")[2]) + 1 :]
    norms = [name for name in behind if "norm" in type(children[name]).__name__.lower()]
    norm = next((name for name in _FINAL if name in children), norms[0] if len(norms) == 1 else None)
    return None if norm is None else f"{parent}.{norm}" if parent else norm


def _name_of(model: nn.Module, wanted: Any) -> str:
    """Dotted path of a sub-module; empty if the model has none."""
    return next((name for name, module in model.named_modules() if module is wanted), "")

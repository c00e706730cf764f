"""Edited models by hand: a transformers model whose list holds the layers of a path, copied."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def hold_path(
    model: PreTrainedModel,
    path: Sequence[int],
    damping_by_block: Mapping[range, int] | None = None,
) -> PreTrainedModel:
    """A copy of a model that holds copies of these layers, in this order, and has a cache for them.

    damping_by_block: For positions of layers in the path, r: their block B does h + (B(h) - h) / r.
    """
    held = copy.deepcopy(model)
    layers = held.model.layers
    copies = [copy.deepcopy(layers[layer_index]) for layer_index in path]
    del layers[:]
    layers.extend(copies)
    for position, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = position
    held.config.num_hidden_layers = len(path)
    if getattr(held.config, "layer_types", None):
        held.config.layer_types = [model.config.layer_types[layer_index] for layer_index in path]
    for block, damping in (damping_by_block or {}).items():
        _damp_by_hooks(layers[block[0]], layers[block[-1]], damping)
    return held


def _damp_by_hooks(first_layer: nn.Module, last_layer: nn.Module, damping: int) -> None:
    entering: list[torch.Tensor] = []

    def keep_stream(module: Any, args: Any, kwargs: Any) -> None:
        entering.append((args[0] if args else kwargs["hidden_states"]).clone())

    def mix_streams(module: Any, args: Any, output: Any) -> Any:
        weight = 1 / damping
        is_stream = isinstance(output, torch.Tensor)
        mixed = weight * (output if is_stream else output[0]) + (1 - weight) * entering.pop()
        return mixed if is_stream else (mixed, *output[1:])

    first_layer.register_forward_pre_hook(keep_stream, with_kwargs=True)
    last_layer.register_forward_hook(mix_streams)

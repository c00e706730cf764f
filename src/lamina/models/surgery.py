"""Removal of units from a model in memory, for good.

A removed layer leaves the list of layers. A removed sub-layer is replaced by a module that adds
nothing. `lamina.models.units` says how units are written.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting
from lamina.models.export.modeling_lamina import NoAttention, NoMLP
from lamina.models.structure import (
    SublayerModule,
    family_of,
    layers_of,
    sublayers_of,
    text_config,
    why_no_sublayers,
)
from lamina.models.units import donor_of, parse_unit

# Attributes in which modules keep the index of their layer; by it they find their part of a cache.
LAYER_INDEX_ATTRIBUTES = ("layer_idx", "layer_id")

# Keys of a configuration whose layers read what another layer computed, or have weights outside of
# the layers.
_DEPENDENCIES = {
    "num_kv_shared_layers": (
        "its last layers reuse keys and values of earlier ones (num_kv_shared_layers)"
    ),
    "hidden_size_per_layer_input": (
        "each layer has a part of one common embedding (hidden_size_per_layer_input)"
    ),
}


class _RemovedModule(NamedTuple):
    """A module of a removed sub-layer, in a layer that stays."""

    layer_index: int
    component: str
    sublayer: SublayerModule


def find_runs(units: Iterable[str], depth: int) -> list[tuple[float, float]]:
    """Contiguous runs of removed units as boundaries (start, end).

    Boundary l is before layer l; l + ½ is between the attention and the MLP of layer l.

    >>> find_runs(["3", "7", "4", "9.mlp", "10.attention"], 12)
    [(3, 5), (7, 8), (9.5, 10.5)]

    Raises LaminaError if a layer is outside 0 … depth-1.
    """
    # The sub-layers of all layers, counted from 0: attention is even, MLP is odd.
    removed: set[int] = set()
    for unit in units:
        if donor_of(unit):
            continue
        layer_index, component = parse_unit(unit)
        _check_exists(layer_index, depth)
        if component != "mlp":
            removed.add(2 * layer_index)
        if component != "attention":
            removed.add(2 * layer_index + 1)

    starts = [_boundary_before(n) for n in sorted(removed) if n - 1 not in removed]
    ends = [_boundary_before(n + 1) for n in sorted(removed) if n + 1 not in removed]
    return list(zip(starts, ends, strict=True))


def _boundary_before(sublayer_number: int) -> float:
    """The boundary before a sub-layer, when the sub-layers of all layers are counted from 0."""
    if sublayer_number % 2:
        return sublayer_number / 2
    return sublayer_number // 2


def units_of(start: float, end: float) -> list[str]:
    """The units that a run removes.

    >>> units_of(9.5, 12)
    ['9.mlp', '10', '11']
    """
    first_layer = ceil(start)
    end_layer = int(end)
    units = [str(layer_index) for layer_index in range(first_layer, end_layer)]
    if start < first_layer:
        units.insert(0, f"{int(start)}.mlp")
    if end > end_layer:
        units.append(f"{end_layer}.attention")
    return units


def kept_layers(model: PreTrainedModel, units: Sequence[str]) -> list[int]:
    """Indices of the layers of a base model that stay when `units` are removed.

    A layer that loses both sub-layers is removed whole, unless a norm acts on the stream itself:
    there, a layer without its sub-layers still does something.
    """
    parsed = [parse_unit(unit) for unit in units]
    removed = {layer for layer, component in parsed if component == "layer"}
    if not family_of(model).stream_norm:
        without_attention = {layer for layer, component in parsed if component == "attention"}
        without_mlp = {layer for layer, component in parsed if component == "mlp"}
        removed |= without_attention & without_mlp
    return [layer for layer in range(len(layers_of(model))) if layer not in removed]


def remove_units(model: PreTrainedModel, units: Sequence[str]) -> PreTrainedModel:
    """Remove units from a base model, in place, and return it.

    A layer that loses both sub-layers is removed whole. The layers that stay are renumbered from 0,
    and every per-layer list of the configuration is cut to them, so that the key-value cache,
    generation and a saved checkpoint agree.

    Raises LaminaError as `check_removal` does, or if no layer would be left.
    """
    check_removal(model, units)
    layers = layers_of(model)
    depth = len(layers)
    kept = kept_layers(model, units)
    if not kept:
        raise LaminaError(
            f"removing all {depth} layers leaves no model. Remove at most {depth - 1}."
        )
    _replace_modules(model, _list_removed_modules(layers, units, kept))
    if len(kept) < depth:
        _remove_layers(layers, kept)
        cutting.cut_config(text_config(model), kept, depth)
    return model


def _list_removed_modules(
    layers: nn.ModuleList, units: Sequence[str], kept: Sequence[int]
) -> list[_RemovedModule]:
    """The modules of the sub-layers that are removed from layers that stay."""
    removed: list[_RemovedModule] = []
    for unit in units:
        layer_index, component = parse_unit(unit)
        if layer_index in kept and component in ("attention", "mlp"):
            for sublayer in sublayers_of(layers[layer_index])[component]:
                removed.append(_RemovedModule(layer_index, component, sublayer))
    return removed


def _replace_modules(model: PreTrainedModel, removed: Sequence[_RemovedModule]) -> None:
    """Put a module that adds nothing in the place of each removed one."""
    if not removed:
        return
    layers = layers_of(model)
    return_counts = _count_returned(model, [sublayer.module for _, _, sublayer in removed])
    for (layer_index, component, sublayer), n_returned in zip(removed, return_counts, strict=True):
        empty: nn.Module
        if component == "attention":
            empty = NoAttention(layer_index, sublayer.residual, n_returned)
        else:
            empty = NoMLP(sublayer.residual, n_returned)
        setattr(layers[layer_index], sublayer.name, empty)


def _remove_layers(layers: nn.ModuleList, kept: Sequence[int]) -> None:
    """Cut a list of layers, in place, and renumber those that stay."""
    kept_modules = [layers[layer_index] for layer_index in kept]
    del layers[:]
    layers.extend(kept_modules)
    for layer_index, layer in enumerate(layers):
        for module in layer.modules():
            for attribute in LAYER_INDEX_ATTRIBUTES:
                if isinstance(getattr(module, attribute, None), int):
                    setattr(module, attribute, layer_index)


def check_removal(model: PreTrainedModel, units: Sequence[str]) -> None:
    """Refuse units that cannot be removed from a base model.

    Raises LaminaError if a unit does not exist or is named twice, or if the model or its family
    cannot lose it.
    """
    parsed = [parse_unit(unit) for unit in units]
    for layer_index, _ in parsed:
        _check_exists(layer_index, len(layers_of(model)))
    if any(component in ("attention", "mlp") for _, component in parsed):
        _check_has_sublayers(model)
    _check_unique(units)
    _check_is_no_export(text_config(model))
    if units:
        _check_independent(text_config(model))


def _check_exists(layer_index: int, depth: int) -> None:
    if layer_index >= depth:
        raise LaminaError(
            f"layer {layer_index} does not exist: the model has layers 0 … {depth - 1}."
        )


def _check_has_sublayers(model: PreTrainedModel) -> None:
    reason = why_no_sublayers(model)
    if reason:
        raise LaminaError(
            f"a layer of the model family '{text_config(model).model_type}' cannot lose its "
            f"attention or its MLP alone: {reason}. Use units: layer."
        )


def _check_unique(units: Sequence[str]) -> None:
    checked: set[tuple[int, str]] = set()
    for unit in units:
        if parse_unit(unit) in checked:
            raise LaminaError(f"unit '{unit}' is named twice.")
        checked.add(parse_unit(unit))


def _check_is_no_export(config: PretrainedConfig) -> None:
    if getattr(config, "lamina", None):
        raise LaminaError(
            "the model is itself an export with patches or removed sub-layers, whose positions a "
            "second cut would shift. Prune the model it was made from, or an export with repair "
            "none."
        )


def _check_independent(config: PretrainedConfig) -> None:
    for key, reason in _DEPENDENCIES.items():
        if getattr(config, key, 0):
            raise LaminaError(
                f"the model cannot lose a part of its depth: {reason}, and a cut would give them "
                "those of other layers. Use a model whose layers do not depend on each other."
            )


@torch.inference_mode()
def _count_returned(model: PreTrainedModel, modules: Sequence[nn.Module]) -> list[int]:
    """How many values each module returns, 0 for the stream alone, in a pass over two tokens."""
    outputs: dict[nn.Module, Any] = {}

    def keep_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs[module] = output

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(keep_output))
        model(input_ids=torch.arange(2, device=model.device)[None], use_cache=False)

    counts: list[int] = []
    for module in modules:
        output = outputs.get(module)
        if output is None or isinstance(output, torch.Tensor):
            counts.append(0)
        else:
            counts.append(len(output))
    return counts

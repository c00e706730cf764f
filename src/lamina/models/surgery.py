"""Applies edits to a model in memory, permanently; `lamina.models.units` defines their syntax.

A removed layer leaves the list of layers. A removed sub-layer is replaced by a module that adds
nothing. A layer that runs again is another module in the list, which shares the tensors.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting
from lamina.models.export.modeling_lamina import NoAttention, NoMLP, damp_block
from lamina.models.structure import (
    SublayerModule,
    family_of,
    layers_of,
    sublayers_of,
    text_config,
    why_no_sublayers,
)
from lamina.models.units import (
    SUBLAYERS,
    Step,
    Visit,
    check_edits,
    list_steps,
    list_visits,
    parse_unit,
    removals_among,
)

# Attributes with the index of a module's layer, by which it finds its part of a cache.
LAYER_INDEX_ATTRIBUTES = ("layer_idx", "layer_id")

# Configuration keys of models whose layers read what another layer computed, or have weights
# outside of the layers.
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


def find_runs(edits: Iterable[str], depth: int) -> list[tuple[float, float]]:
    """Contiguous runs of removed units as boundaries (start, end).

    Boundary l is before layer l; l + ½ is between the attention and the MLP of layer l.

    >>> find_runs(["3", "7", "4", "9.mlp", "10.attention"], 12)
    [(3, 5), (7, 8), (9.5, 10.5)]

    Raises LaminaError as `check_edits` does.
    """
    removals = dict.fromkeys(removals_among(edits))
    check_edits(removals, depth)
    # The sub-layers of all layers, counted from 0: attention is even, MLP is odd.
    removed: set[int] = set()
    for unit in removals:
        layer_index, component = parse_unit(unit)
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


def steps_of(model: PreTrainedModel, edits: Iterable[str]) -> list[Step]:
    """What the base model with edits runs at each depth, and after its last layer.

    A layer that loses both sub-layers is removed whole, unless a norm acts on the stream itself:
    there, a layer without its sub-layers still does something.
    """
    return list_steps(edits, len(layers_of(model)), not family_of(model).stream_norm)


def source_layers(model: PreTrainedModel, edits: Iterable[str]) -> list[int]:
    """For each layer of the edited model, the index of its layer in the base model."""
    return [visit.layer for visit in list_visits(steps_of(model, edits))]


def apply_edits(
    model: PreTrainedModel,
    edits: Sequence[str],
    donor_layers: Mapping[Visit, nn.Module] | None = None,
) -> PreTrainedModel:
    """Apply edits to a base model, in place, and return it.

    A layer that loses both sub-layers is removed whole. The layers of the edited model are numbered
    from 0, and every per-layer list of the configuration has an entry for each of them, so that the
    key-value cache, generation and a saved checkpoint agree.

    donor_layers: The layers of other models that replace some of the model's own.

    Raises LaminaError as `check_editable` does, or if no layer would be left.
    """
    check_editable(model, edits)
    layers = layers_of(model)
    depth = len(layers)
    steps = steps_of(model, edits)
    visits = list_visits(steps)
    if not visits:
        raise LaminaError(
            f"removing all {depth} layers leaves no model. Remove at most {depth - 1}."
        )
    sources = [visit.layer for visit in visits]
    _replace_modules(model, _list_removed_modules(layers, removals_among(edits), sources))
    _put_layers(model, visits, donor_layers or {})
    _damp_blocks(layers, steps)
    if sources != list(range(depth)):
        cutting.cut_config(text_config(model), sources, depth)
    return model


def share_layer(layer: nn.Module, config: PretrainedConfig) -> nn.Module:
    """A copy of a layer that shares its tensors and has the configuration of a model."""
    tensors = (*layer.parameters(), *layer.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    for module in layer.modules():
        memo[id(getattr(module, "config", config))] = config
    return copy.deepcopy(layer, memo)


def _list_removed_modules(
    layers: nn.ModuleList, units: Sequence[str], sources: Sequence[int]
) -> list[_RemovedModule]:
    """The modules of the sub-layers that are removed from layers that stay."""
    removed: list[_RemovedModule] = []
    for unit in units:
        layer_index, component = parse_unit(unit)
        if layer_index in sources and component in SUBLAYERS:
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


def _put_layers(
    model: PreTrainedModel, visits: Sequence[Visit], donor_layers: Mapping[Visit, nn.Module]
) -> None:
    """Replace the list of layers by those of the visits, in place, and number them."""
    layers = layers_of(model)
    base_layers = list(layers)
    del layers[:]
    for visit in visits:
        layer = donor_layers[visit] if visit.donor else base_layers[visit.layer]
        if visit.donor or layer in layers:
            layer = share_layer(layer, text_config(model))
        layers.append(layer)

    for layer_index, layer in enumerate(layers):
        for module in layer.modules():
            for attribute in LAYER_INDEX_ATTRIBUTES:
                if isinstance(getattr(module, attribute, None), int):
                    setattr(module, attribute, layer_index)


def _damp_blocks(layers: nn.ModuleList, steps: Sequence[Step]) -> None:
    """Damp the blocks that run again with damping, in the list of an edited model's layers."""
    position = 0
    for step in steps:
        for _ in range(step.damping if step.again else 0):
            end = position + len(step.again)
            if step.damping > 1:
                damp_block(list(layers[position:end]), step.damping)
            position = end
        position += step.visit is not None


def check_editable(model: PreTrainedModel, edits: Sequence[str]) -> None:
    """Refuse edits that are impossible in a base model.

    Raises LaminaError as `check_edits` does, or if the model or its family cannot have them.
    """
    check_edits(edits, len(layers_of(model)))
    if any(parse_unit(edit)[1] in SUBLAYERS for edit in edits):
        reason = why_no_sublayers(model)
        if reason:
            raise LaminaError(
                f"a layer of the model family '{text_config(model).model_type}' cannot lose its "
                f"attention or its MLP alone: {reason}. Use units: layer."
            )
    _check_is_no_export(text_config(model))
    if edits:
        _check_independent(text_config(model))
    sources = source_layers(model, edits)
    if sources != sorted(set(sources)):
        cutting.cut_config(copy.deepcopy(text_config(model)), sources, len(layers_of(model)))


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
                f"the model cannot be cut: {reason}, and a cut would give them those of other "
                "layers. Use a model whose layers do not depend on each other."
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

"""Taking units out of a model for good: layers leave the list, sub-layers leave a module that adds nothing.

`lamina.models.units` says how units are written.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from math import ceil
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import cutting
from lamina.models.export.modeling_lamina import NoAttention, NoMLP
from lamina.models.structure import family_of, halves, layers_of, text_config, why_no_sublayers
from lamina.models.units import parse, replacement

# Attributes in which modules keep the number of their layer; by it they find their part of a cache.
NUMBERED = ("layer_idx", "layer_id")

# Keys of a configuration whose layers read what another layer computed, or have weights outside of the layers.
_TIED = {
    "num_kv_shared_layers": "its last layers reuse keys and values of earlier ones (num_kv_shared_layers)",
    "hidden_size_per_layer_input": "each layer has a part of one common embedding (hidden_size_per_layer_input)",
}


def runs(units: Iterable[str], depth: int) -> list[tuple[float, float]]:
    """Contiguous runs of removed units as boundaries (start, end): l + ½ is between attention and MLP of layer l.

    >>> runs(["3", "7", "4", "9.mlp", "10.attention"], 12)
    [(3, 5), (7, 8), (9.5, 10.5)]

    Raises LaminaError if a layer is outside 0 … depth-1.
    """
    halves: set[int] = set()
    for layer, part in (parse(unit) for unit in units if not replacement(unit)):
        if layer >= depth:
            raise LaminaError(
                f"layer {layer} does not exist: the model has layers 0 … {depth - 1}."
            )
        halves.update(
            {"attention": [2 * layer], "mlp": [2 * layer + 1]}.get(part, [2 * layer, 2 * layer + 1])
        )
    ends = [
        [_place(n + side) for n in sorted(halves) if n + step not in halves]
        for side, step in ((0, -1), (1, 1))
    ]
    return list(zip(*ends, strict=True))


def units_of(start: float, end: float) -> list[str]:
    """The units that a run removes.

    >>> units_of(9.5, 12)
    ['9.mlp', '10', '11']
    """
    first, last = ceil(start), int(end)
    before, behind = [f"{int(start)}.mlp"] * (start < first), [f"{last}.attention"] * (end > last)
    return [*before, *map(str, range(first, last)), *behind]


def _place(half: int) -> float:
    """The boundary before a half, when the halves of all layers are counted from 0."""
    return half / 2 if half % 2 else half // 2


def kept_layers(model: PreTrainedModel, units: Sequence[str]) -> list[int]:
    """Numbers of the layers that stay when `units` leave an unpruned model; one that loses both halves goes whole."""
    parsed = [parse(unit) for unit in units]
    gone, *halved = (
        {layer for layer, each in parsed if each == part} for part in ("layer", "attention", "mlp")
    )
    # Where a norm stands on the stream itself, a layer without its halves still does something.
    if not family_of(model).stream_norm:
        gone |= set.intersection(*halved)
    return [layer for layer in range(len(layers_of(model))) if layer not in gone]


def remove(model: PreTrainedModel, units: Sequence[str]) -> PreTrainedModel:
    """Remove units from an unpruned model, in place, and return it. A layer that loses both halves is removed whole.

    Surviving layers are renumbered from 0 and every per-layer list of the configuration is cut to them, so that the
    key-value cache, generation and a saved checkpoint agree.

    Raises LaminaError as `check` does, or if nothing would be left.
    """
    check(model, units)
    layers, config = layers_of(model), text_config(model)
    depth = len(layers)
    parsed = [parse(unit) for unit in units]
    kept = kept_layers(model, units)
    if not kept:
        raise LaminaError(
            f"removing all {depth} layers leaves no model. Remove at most {depth - 1}."
        )
    gone = [
        (layer, part, half)
        for layer, part in parsed
        if layer in kept and part in ("attention", "mlp")
        for half in halves(layers[layer])[part]
    ]
    returns = _returned(model, [half.module for _, _, half in gone]) if gone else []
    for (layer, part, half), count in zip(gone, returns, strict=True):
        form = (half.residual, count)
        setattr(
            layers[layer],
            half.name,
            NoAttention(layer, *form) if part == "attention" else NoMLP(*form),
        )
    if len(kept) < depth:
        survivors = [layers[layer] for layer in kept]
        del layers[:]
        layers.extend(survivors)
        for number, layer_module in enumerate(layers):
            for module in layer_module.modules():
                for name in NUMBERED:
                    if isinstance(getattr(module, name, None), int):
                        setattr(module, name, number)
        cutting.cut(config, kept, depth)
    return model


def check(model: PreTrainedModel, units: Sequence[str]) -> None:
    """Refuse units that cannot leave an unpruned model.

    Raises LaminaError if a unit does not exist or is named twice, or if the model or its family cannot lose it.
    """
    depth, config = len(layers_of(model)), text_config(model)
    parsed = [parse(unit) for unit in units]
    for layer, _ in parsed:
        if layer >= depth:
            raise LaminaError(
                f"layer {layer} does not exist: the model has layers 0 … {depth - 1}."
            )
    if any(component in ("attention", "mlp") for _, component in parsed) and (
        reason := why_no_sublayers(model)
    ):
        raise LaminaError(
            f"a layer of the model family '{config.model_type}' cannot lose its attention or its MLP alone: {reason}. "
            "Use units: layer."
        )
    if len(set(parsed)) != len(parsed):
        raise LaminaError(
            f"a unit is named twice among {['.'.join(map(str, unit)) for unit in parsed]}."
        )
    if getattr(config, "lamina", None):
        raise LaminaError(
            "the model is itself an export with patches or removed halves, whose places a second cut would shift. "
            "Prune the model it was made from, or an export with repair none."
        )
    for key, words in _TIED.items():
        if units and bool(getattr(config, key, 0)):
            raise LaminaError(
                f"the model cannot lose a part of its depth: {words}, and a cut would give them those of other layers. "
                "Use a model whose layers stand alone."
            )


@torch.inference_mode()
def _returned(model: PreTrainedModel, modules: Sequence[nn.Module]) -> list[int]:
    """How many values each module returns, 0 for the stream alone, as a pass over two tokens shows."""
    outputs: dict[nn.Module, Any] = {}
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(
                module.register_forward_hook(lambda m, args, output: outputs.update({m: output}))
            )
        model(input_ids=torch.arange(2, device=model.device)[None], use_cache=False)
    found = [outputs.get(module) for module in modules]
    return [
        0 if output is None or isinstance(output, torch.Tensor) else len(output) for output in found
    ]

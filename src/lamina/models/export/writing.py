"""Finds the linear maps through which MLPs write to the residual stream (down projections).

Repairs can be folded into their weights. A map is found by what it does: its output is the output
of the MLP, and the layer adds exactly that to the stream.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lamina.errors import LaminaError
from lamina.models.structure import (
    SublayerModule,
    family_of,
    layers_of,
    stream_of,
    sublayers_of,
    text_config,
)
from lamina.options.repairs import Repair

TOLERANCE = 1e-2  # of the largest value; rounding in 16 bits is smaller

MapsByLayer = dict[int, nn.Module | str]
"""The linear map of each layer that has an MLP, or the reason why there is none."""

_known_maps: "WeakKeyDictionary[PreTrainedModel, MapsByLayer]" = WeakKeyDictionary()


@dataclass(frozen=True)
class RecordedCall:
    """How a module was called, and what it returned."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


def down_projection(model: PreTrainedModel, layer: int) -> nn.Module:
    """The linear map of a layer's MLP whose output is added to the residual stream.

    Raises LaminaError if the layer has none, or something stands between it and the stream.
    """
    if getattr(text_config(model), "quantization_config", None) is not None:
        raise _refuse_family(model, "is quantised, which would round what is folded into weights")
    if family_of(model).stream_norm:
        raise _refuse_family(
            model,
            "has a norm between the MLP and the stream, which undoes what is folded into weights",
        )
    if model not in _known_maps:
        _known_maps[model] = _find_maps(model)
    found = _known_maps[model].get(layer, f"has no mlp in layer {layer}")
    if isinstance(found, str):
        raise _refuse_family(model, found)
    return found


@torch.inference_mode()
def _find_maps(model: PreTrainedModel) -> MapsByLayer:
    """By layer, the linear map of the MLP that writes to the stream, or why there is none."""
    layers = list(layers_of(model))
    with _record_calls(layers) as calls:
        model(input_ids=torch.arange(4, device=model.device)[None], use_cache=False)
    maps: MapsByLayer = {}
    for layer_index, layer in enumerate(layers):
        mlp_modules = sublayers_of(layer)["mlp"]
        if layer in calls and mlp_modules:
            # If there are several in a row, the last one gives the MLP's output.
            maps[layer_index] = _find_map(layer, mlp_modules[-1], calls[layer])
    return maps


def _find_map(layer: nn.Module, mlp: SublayerModule, layer_call: RecordedCall) -> nn.Module | str:
    """The linear map in `mlp` that writes to the stream, or the reason why there is none.

    layer_call: a call of the layer, which is repeated.
    """
    linear_maps = [
        module for module in mlp.module.modules() if isinstance(module, (nn.Linear, Conv1D))
    ]
    with _record_calls([mlp.module, *linear_maps]) as calls:
        layer_output = stream_of(layer(*layer_call.args, **layer_call.kwargs))
    if mlp.module not in calls:
        return "does not run the mlp of a layer"

    mlp_output = _added_to_stream(mlp, calls[mlp.module])
    writing_maps = [
        module
        for module in linear_maps
        if module in calls and _is_close(stream_of(calls[module].output), mlp_output)
    ]
    if not writing_maps:
        return "has no single linear map from the MLP to the stream"

    with _subtract_from_output(mlp.module, mlp_output):
        output_without_mlp = stream_of(layer(*layer_call.args, **layer_call.kwargs))
    # Both are rounded to the spacing of the stream, which may be far larger than what is added.
    epsilon = torch.finfo(layer_output.dtype).eps
    rounding = epsilon * (layer_output.abs() + output_without_mlp.abs())
    if not _is_close(layer_output - output_without_mlp, mlp_output, rounding):
        return (
            "has a norm or a factor between the MLP and the stream, which changes what is folded "
            "into weights"
        )
    return writing_maps[-1]


def _added_to_stream(mlp: SublayerModule, call: RecordedCall) -> torch.Tensor:
    """What an MLP adds to the stream, even if it adds the residual itself."""
    output = stream_of(call.output)
    if not mlp.residual:
        return output
    residual = call.kwargs["residual"] if "residual" in call.kwargs else call.args[1]
    return output - residual


@contextmanager
def _record_calls(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, RecordedCall]]:
    """While open, record the last call of each module."""
    calls: dict[nn.Module, RecordedCall] = {}

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # A copy, since a layer may add to an output in place.
        if isinstance(output, torch.Tensor):
            output_copy: Any = output.clone()
        else:
            output_copy = (output[0].clone(), *output[1:])
        calls[module] = RecordedCall(args, kwargs, output_copy)

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(record, with_kwargs=True))
        yield calls


@contextmanager
def _subtract_from_output(module: nn.Module, amount: torch.Tensor) -> Iterator[None]:
    """While open, `amount` is subtracted from the output of a module."""

    def subtract(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        difference = stream - amount.view(stream.shape)
        if isinstance(output, torch.Tensor):
            return difference
        return (difference, *output[1:])

    with module.register_forward_hook(subtract):
        yield


def _is_close(
    values: torch.Tensor, expected: torch.Tensor, rounding: torch.Tensor | None = None
) -> bool:
    """Whether values are equal, up to rounding of each and a small share of the largest one."""
    if values.numel() != expected.numel():
        return False
    difference = (values.flatten().float() - expected.flatten().float()).abs()
    if rounding is not None:
        difference = difference - rounding.flatten().float()
    return bool(difference.max() <= TOLERANCE * expected.float().abs().max())


def _refuse_family(model: PreTrainedModel, reason: str) -> LaminaError:
    return LaminaError(
        f"the model family '{family_of(model).name}' {reason}. Use a repair that acts on the "
        f"stream itself: {Repair.of_stream()}."
    )

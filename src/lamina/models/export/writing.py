"""The linear maps through which MLPs write to the residual stream, for repairs that are folded into weights.

A map is found by what it does: its output is the output of the MLP, and the layer adds exactly that to the stream.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lamina.config.repairs import Repair
from lamina.errors import LaminaError
from lamina.models.structure import SublayerModule, family_of, halves, layers_of, text_config

_CLOSE = 1e-2  # of the largest value; rounding in 16 bits is smaller

_Maps = dict[int, nn.Module | str]
_known: "WeakKeyDictionary[PreTrainedModel, _Maps]" = WeakKeyDictionary()


def down_projection(model: PreTrainedModel, layer: int) -> nn.Module:
    """The linear map of a layer's MLP whose output is added to the residual stream.

    Raises LaminaError if the layer has none, or something stands between it and the stream.
    """
    if getattr(text_config(model), "quantization_config", None) is not None:
        raise _unfoldable(model, "is quantised, and would round what is folded into its weights")
    if family_of(model).stream_norm:
        raise _unfoldable(
            model,
            "has a norm between the MLP and the stream, which undoes what is folded into weights",
        )
    if model not in _known:
        _known[model] = _look(model)
    writer = _known[model].get(layer, f"has no mlp in layer {layer}")
    if isinstance(writer, str):
        raise _unfoldable(model, writer)
    return writer


@torch.inference_mode()
def _look(model: PreTrainedModel) -> _Maps:
    """For the MLP of each layer, the linear map that writes to the stream, or the reason why there is none."""
    layers, maps = list(layers_of(model)), _Maps()
    with _given(layers) as given:
        model(input_ids=torch.arange(4, device=model.device)[None], use_cache=False)
    for number, layer in enumerate(layers):
        if layer in given and (modules := halves(layer)["mlp"]):
            (args, kwargs), _ = given[layer]
            maps[number] = _map_of(layer, modules, args, kwargs)
    return maps


def _map_of(
    layer: nn.Module, modules: Sequence[SublayerModule], args: Any, kwargs: Any
) -> nn.Module | str:
    # The last of the modules gives what the MLP gives, if there are several in a row.
    half = modules[-1]
    maps = [module for module in half.module.modules() if isinstance(module, (nn.Linear, Conv1D))]
    with _given([half.module, *maps]) as given:
        whole = _stream(layer(*args, **kwargs))
    if half.module not in given:
        return "does not run the mlp of a layer"
    (inputs, named), output = given[half.module]
    gives = _stream(output)
    if half.residual:
        gives = gives - (named["residual"] if "residual" in named else inputs[1])
    writing = [
        module for module in maps if module in given and _same(_stream(given[module][1]), gives)
    ]
    if not writing:
        return "has no one linear map that leads from the MLP to the stream"

    def silence(module: nn.Module, inputs: Any, output: Any) -> Any:
        left = _stream(output) - gives.view(_stream(output).shape)
        return left if isinstance(output, torch.Tensor) else (left, *output[1:])

    with half.module.register_forward_hook(silence):
        rest = _stream(layer(*args, **kwargs))
    # Both are rounded to the spacing of the stream, which may be far larger than what is added to it.
    if not _same(whole - rest, gives, torch.finfo(whole.dtype).eps * (whole.abs() + rest.abs())):
        return "has a norm between the MLP and the stream, or a factor, which changes what is folded into weights"
    return writing[-1]


@contextmanager
def _given(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """While open, record the arguments and the output of each module."""
    given: dict[nn.Module, Any] = {}

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        copied = (
            output.clone() if isinstance(output, torch.Tensor) else (output[0].clone(), *output[1:])
        )
        given[module] = ((args, kwargs), copied)

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield given


def _same(one: torch.Tensor, other: torch.Tensor, rounded: torch.Tensor | None = None) -> bool:
    """Whether values are equal, up to a small share of the largest one and up to what rounding explains of each."""
    if one.numel() != other.numel():
        return False
    far = (one.flatten().float() - other.flatten().float()).abs()
    if rounded is not None:
        far = far - rounded.flatten().float()
    return bool(far.max() <= _CLOSE * other.float().abs().max())


def _stream(output: Any) -> torch.Tensor:
    stream: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return stream


def _unfoldable(model: PreTrainedModel, reason: str) -> LaminaError:
    return LaminaError(
        f"the model family '{family_of(model).name}' {reason}. Use a repair that acts on the stream "
        f"itself: {Repair.of_stream()}."
    )

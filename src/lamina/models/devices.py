"""A model over the devices of a job: its layers fill one device after the other, and those that fit none are streamed.

A streamed layer keeps its weights where loading left them, in the checkpoint's memory map, and has a copy of them on
the first device while it runs. So every weight is a tensor that can be read, copied and shared at any time, and a
variant shares those of the base model wherever they are. Everything but the layers lies on the first device.
"""

import copy
import logging
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import layers_of

LIMIT = "LAMINA_DEVICE_GB"  # gigabytes of a device that weights may take; by default what is free
SHARE = 0.85  # of the free memory, for weights; passes have the rest

_logger = logging.getLogger(__name__)


def visible() -> list[tuple[torch.device, int]]:
    """The devices of this job, each with the bytes of weights that it has room for; a CPU has room for all."""
    gigabytes = os.environ.get(LIMIT)
    limit = int(float(gigabytes) * 1e9) if gigabytes else 1 << 62
    if not torch.cuda.is_available():
        return [(torch.device("cpu"), limit)]
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [(gpu, min(limit, int(SHARE * torch.cuda.mem_get_info(gpu)[0]))) for gpu in gpus]


def spread(model: PreTrainedModel, devices: Sequence[tuple[torch.device, int]]) -> PreTrainedModel:
    """Move a model that was loaded into host memory to `devices`, in place.

    Raises LaminaError if the first device has no room for one layer and everything that is no layer.
    """
    layers = layers_of(model)
    sizes, first = [_bytes(layer) for layer in layers], devices[0][0]
    places = _fill(_bytes(model) - sum(sizes), sizes, [room for _, room in devices])
    if places is None:
        raise LaminaError(
            f"{model.config.name_or_path}: its embeddings and one layer do not fit into the "
            f"{devices[0][1] / 1e9:.2f} GB of {first}. Use a device with more memory, dtype: bfloat16, "
            f"or a larger {LIMIT}."
        )
    if set(places) == {0}:
        torch.nn.Module.to(model, first)
        return model
    inside = {part for layer in layers for part in layer.modules()}
    for part in model.modules():
        if part not in inside and any(
            True for _ in chain(part.parameters(False), part.buffers(False))
        ):
            _run_on(part, first, streamed=False)
    kept = list(layers)
    del layers[:]
    torch.nn.Module.to(model, first)
    layers.extend(kept)
    for layer, place in zip(layers, places, strict=True):
        _run_on(layer, first if place is None else devices[place][0], streamed=place is None)
    if streamed := places.count(None):
        _logger.warning(
            f"{streamed} of {len(places)} layers find no room on {len(devices)} device(s) and are read from the "
            "checkpoint in every pass, which is slow: `devices: auto` in the model's entry asks for more GPUs."
        )
    return model


def place_of(module: nn.Module) -> torch.device:
    """Where a layer computes, which is where its weights are unless it is streamed."""
    device: torch.device | None = getattr(module, "runs_on", None)
    return device or next(module.parameters()).device


def alone(layer: nn.Module, on: torch.device) -> nn.Module:
    """A copy of a layer that keeps its weights on a device, even if the layer itself is streamed."""
    copied = copy.deepcopy(layer)
    for hooks in (copied._forward_pre_hooks, copied._forward_hooks):
        for number in [number for number, hook in hooks.items() if hook in (_enter, _leave)]:
            del hooks[number]
    for name in ("runs_on", "brought"):
        copied.__dict__.pop(name, None)
    return copied.to(on)


def moved(value: Any, place: torch.device) -> Any:
    """A tensor, or a tuple or list with its tensors, moved to a device; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(place)
    return (
        type(value)(moved(part, place) for part in value) if type(value) in (tuple, list) else value
    )


def beside(layer: nn.Module, other: nn.Module) -> nn.Module:
    """A layer that computes where `other` does: a copy there, if the model of `other` is over several devices."""
    place = other.__dict__.get("runs_on")
    if place is None:
        return layer
    copied = alone(layer, place)
    _run_on(copied, place, streamed=False)
    return copied


def _fill(rest: int, layers: Sequence[int], room: Sequence[int]) -> list[int | None] | None:
    """The number of each layer's device, None for a streamed layer; None instead of a list if not one layer fits.

    Sizes are in bytes; `rest` is the size of everything that is no layer.
    """
    for streamed in (0, max(layers)):
        left, at = [room[0] - rest - streamed, *room[1:]], 0
        if left[0] < 0:
            continue
        places: list[int | None] = []
        for size in layers:
            while at < len(left) and left[at] < size:
                at += 1
            if at < len(left):
                left[at] -= size
            places.append(at if at < len(left) else None)
        if streamed or None not in places:
            return places
    return None


def _bytes(module: nn.Module) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in (*module.parameters(), *module.buffers())
    )


def _run_on(module: nn.Module, place: torch.device, streamed: bool) -> None:
    """Make `module` take its inputs to `place`, and keep its weights there or bring them for each call.

    The hooks are functions of the module alone, so that copies of it have their own.
    """
    module.__dict__["runs_on"] = place
    module.register_forward_pre_hook(_enter, with_kwargs=True)
    if streamed:
        module.__dict__["brought"] = []
        module.register_forward_hook(_leave, always_call=True)
    else:
        module.to(place)


def _enter(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    place = module.__dict__["runs_on"]
    brought = module.__dict__.get("brought")
    if brought is not None:
        if torch.is_grad_enabled():
            raise LaminaError(
                "gradients need the weights of all layers on a device, and some find no room. Give the model more "
                "GPUs (`devices: auto` in its entry), or leave out healings and the metric taylor."
            )
        for part in module.modules():
            for name, tensor in [
                *part.named_parameters(recurse=False),
                *part.named_buffers(recurse=False),
            ]:
                brought.append((part, name, tensor))
                copied = tensor.detach().to(place, copy=True)
                is_weight = isinstance(tensor, nn.Parameter)
                setattr(
                    part, name, nn.Parameter(copied, requires_grad=False) if is_weight else copied
                )
    return moved(args, place), {name: moved(value, place) for name, value in kwargs.items()}


def _leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    brought = module.__dict__["brought"]
    while brought:
        part, name, tensor = brought.pop()
        setattr(part, name, tensor)

"""Spreads a model over the devices of a job.

Layers fill one device after the other, and those that fit on none are streamed. A streamed layer
keeps its weights in the memory map of the checkpoint, and copies them to the first device while it
runs. So every weight can be read, copied and shared at any time, and a variant shares the base
model's weights wherever they are. Everything but the layers is on the first device.
"""

import copy
import logging
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import layers_of

LIMIT = "LAMINA_DEVICE_GB"
"""Environment variable: the most gigabytes of each device that weights may take."""
SHARE = 0.85
"""Share of a GPU's free memory that weights may take. Passes use the rest."""

_NO_LIMIT = 1 << 62  # bytes
PROCESSOR_FILE = Path("/proc/cpuinfo")
# Linux's names for the instructions of x86 and Arm processors.
_BFLOAT16_INSTRUCTIONS = {"amx_bf16", "avx512_bf16", "bf16"}

_logger = logging.getLogger(__name__)


def multiplies_bfloat16() -> bool:
    """Whether this machine has instructions that multiply matrices of bfloat16.

    Without them bfloat16 is slower than float32. With AVX512-BF16 it is four times as fast.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if not PROCESSOR_FILE.is_file():
        return False
    words = PROCESSOR_FILE.read_text(encoding="utf-8").split()
    return not _BFLOAT16_INSTRUCTIONS.isdisjoint(words)


def visible_devices() -> list[tuple[torch.device, int]]:
    """The devices of this job, each with the bytes of weights that it has room for.

    A CPU has room for all.
    """
    gigabytes = os.environ.get(LIMIT)
    limit = int(float(gigabytes) * 1e9) if gigabytes else _NO_LIMIT
    if not torch.cuda.is_available():
        return [(torch.device("cpu"), limit)]
    devices: list[tuple[torch.device, int]] = []
    for gpu_index in range(torch.cuda.device_count()):
        gpu = torch.device("cuda", gpu_index)
        free_bytes, _ = torch.cuda.mem_get_info(gpu)
        devices.append((gpu, min(limit, int(SHARE * free_bytes))))
    return devices


def spread_model(
    model: PreTrainedModel, devices: Sequence[tuple[torch.device, int]]
) -> PreTrainedModel:
    """Move a model that was loaded into host memory to `devices`, in place.

    Raises LaminaError if the first device has no room for one layer and everything that is not in
    a layer.
    """
    layers = layers_of(model)
    first_device, first_room = devices[0]
    layer_sizes = [count_bytes(layer) for layer in layers]
    device_indices = _assign_layers(
        layer_sizes, count_bytes(model) - sum(layer_sizes), [room for _, room in devices]
    )
    if device_indices is None:
        raise LaminaError(
            f"{model.config.name_or_path}: its embeddings and one layer do not fit into the "
            f"{first_room / 1e9:.2f} GB of {first_device}. Use a device with more memory, dtype: "
            f"bfloat16, or a larger {LIMIT}."
        )
    if set(device_indices) == {0}:
        torch.nn.Module.to(model, first_device)
        return model

    _move_all_but_layers(model, first_device)
    for layer, device_index in zip(layers, device_indices, strict=True):
        if device_index is None:
            _run_on(layer, first_device, is_streamed=True)
        else:
            device, _ = devices[device_index]
            _run_on(layer, device, is_streamed=False)

    n_streamed = device_indices.count(None)
    if n_streamed:
        _logger.warning(
            f"{n_streamed} of {len(layers)} layers do not fit on {len(devices)} device(s) and are "
            "read from the checkpoint in every pass, which is slow: `devices: auto` in the model's "
            "entry asks for more GPUs."
        )
    return model


def count_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers of a module."""
    tensors = chain(module.parameters(), module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _assign_layers(
    layer_sizes: Sequence[int], other_size: int, rooms: Sequence[int]
) -> list[int | None] | None:
    """The index of each layer's device, None for a streamed layer.

    None instead of a list if not even one layer fits. All sizes are in bytes; `other_size` is the
    size of everything outside the layers, which goes to the first device.
    """
    first_room = rooms[0] - other_size
    if first_room >= 0:
        device_indices = _fill_devices(layer_sizes, [first_room, *rooms[1:]])
        if None not in device_indices:
            return device_indices
    # A streamed layer needs room for a copy on the first device.
    first_room -= max(layer_sizes)
    if first_room < 0:
        return None
    return _fill_devices(layer_sizes, [first_room, *rooms[1:]])


def _fill_devices(layer_sizes: Sequence[int], rooms: list[int]) -> list[int | None]:
    """Fill one device after the other: the index of each layer's device, None without room."""
    device_indices: list[int | None] = []
    device_index = 0
    for size in layer_sizes:
        while device_index < len(rooms) and rooms[device_index] < size:
            device_index += 1
        if device_index == len(rooms):
            device_indices.append(None)
            continue
        rooms[device_index] -= size
        device_indices.append(device_index)
    return device_indices


def _move_all_but_layers(model: PreTrainedModel, device: torch.device) -> None:
    layers = layers_of(model)
    in_layers: set[nn.Module] = set()
    for layer in layers:
        in_layers.update(layer.modules())
    for module in model.modules():
        own_tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if module not in in_layers and own_tensors:
            _run_on(module, device, is_streamed=False)

    layer_modules = list(layers)
    del layers[:]
    torch.nn.Module.to(model, device)
    layers.extend(layer_modules)


def place_of(module: nn.Module) -> torch.device:
    """The device on which a layer computes: that of its weights, unless it is streamed."""
    device: torch.device | None = getattr(module, "runs_on", None)
    return device or next(module.parameters()).device


def copy_to_device(layer: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a layer that keeps its weights on a device, even if the layer is streamed."""
    copied = copy.deepcopy(layer)
    for hooks in (copied._forward_pre_hooks, copied._forward_hooks):
        for hook_id, hook in list(hooks.items()):
            if hook in (_enter, _leave):
                del hooks[hook_id]
    for name in ("runs_on", "host_tensors"):
        copied.__dict__.pop(name, None)
    return copied.to(device)


def follow_device(layer: nn.Module, other: nn.Module) -> nn.Module:
    """A layer that computes on the device of `other`.

    It is a copy if the model of `other` is spread over several devices; else the layer itself.
    """
    device = other.__dict__.get("runs_on")
    if device is None:
        return layer
    copied = copy_to_device(layer, device)
    _run_on(copied, device, is_streamed=False)
    return copied


def move_tensors(value: Any, device: torch.device) -> Any:
    """A tensor, or a tuple or list with its tensors, moved to a device; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (tuple, list):
        return type(value)(move_tensors(entry, device) for entry in value)
    return value


def _run_on(module: nn.Module, device: torch.device, is_streamed: bool) -> None:
    """Make a module move its inputs to a device, and keep its weights there or copy them per call.

    The hooks keep their state in the module, so that they also work in copies of it.
    """
    module.__dict__["runs_on"] = device
    module.register_forward_pre_hook(_enter, with_kwargs=True)
    if is_streamed:
        module.__dict__["host_tensors"] = []
        module.register_forward_hook(_leave, always_call=True)
    else:
        module.to(device)


def _enter(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before the call: move the inputs of a module to its device, and copy streamed weights."""
    device = module.__dict__["runs_on"]
    if "host_tensors" in module.__dict__:
        _copy_weights(module, device)
    moved_kwargs = {name: move_tensors(value, device) for name, value in kwargs.items()}
    return move_tensors(args, device), moved_kwargs


def _copy_weights(layer: nn.Module, device: torch.device) -> None:
    """Replace the tensors of a streamed layer by copies on a device."""
    if torch.is_grad_enabled():
        raise LaminaError(
            "gradients need the weights of all layers on a device, and some do not fit. Give the "
            "model more GPUs (`devices: auto` in its entry), or leave out healings and the metric "
            "taylor."
        )
    for module in layer.modules():
        named_tensors = [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]
        for name, tensor in named_tensors:
            layer.__dict__["host_tensors"].append((module, name, tensor))
            copied = tensor.detach().to(device, copy=True)
            if isinstance(tensor, nn.Parameter):
                copied = nn.Parameter(copied, requires_grad=False)
            setattr(module, name, copied)


def _leave(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """After the call: put the tensors of a streamed layer back."""
    host_tensors = layer.__dict__["host_tensors"]
    while host_tensors:
        module, name, tensor = host_tensors.pop()
        setattr(module, name, tensor)

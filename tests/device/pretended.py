"""GPUs that do not exist: tensors claim `cuda:N`, compute on the CPU, and refuse what a GPU would.

A `Placed` tensor holds a CPU tensor. C++ takes it for a meta tensor, Python reads `cuda:N` from it.
Every operation comes to `Placed.__torch_dispatch__`, which refuses operands on different devices,
runs the CPU's kernel on what they hold, and counts the bytes of the result against the memory of
its device.

What this cannot show is written in docs/models.md: kernels, speed, fragmentation, random numbers of
a device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import peft  # noqa: F401  looks for devices as it is imported
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad

from tests.device import placed
from tests.device.placed import (
    Card,
    Machine,
    Operations,
    Placed,
    common_device,
    held_by,
    make_on_host_first,
    operands_of,
    tensor_to,
)

Replacement = tuple[Any, str, Any]  # an object, its attribute, and what to put there


@contextmanager
def pretend_devices(*memory_bytes: int) -> Iterator[Machine]:
    """While open, there are as many GPUs as numbers are given; by default one with 80 GiB.

    Tensors of a pretended device must not be used after it.
    """
    cards = [Card(index, memory) for index, memory in enumerate(memory_bytes or (80 * placed.GIB,))]
    machine = Machine(cards)
    swap_parameters = torch.__future__.set_swap_module_params_on_conversion
    swapped_before = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for holder, name, replacement in _replacements(machine):
            stack.enter_context(mock.patch.object(holder, name, replacement, create=True))
        # Parameters that move change their class, so they are swapped.
        swap_parameters(True)
        stack.callback(swap_parameters, swapped_before)
        placed.current = machine
        stack.enter_context(Operations())
        try:
            yield machine
        finally:
            placed.current = None


def _replacements(machine: Machine) -> Iterator[Replacement]:
    """All of torch that must know of the pretended devices."""
    yield from _tensor_replacements(machine)
    yield from _constant_replacements()
    yield from _card_replacements(machine)


def _tensor_replacements(machine: Machine) -> Iterator[Replacement]:
    """Functions of tensors for which C++ would ask itself where a tensor is."""

    def tensor_cuda(tensor: torch.Tensor, device: Any = None, **_: Any) -> torch.Tensor:
        return tensor.to(torch.device("cuda", machine.find_card(device).index))

    def tensor_type_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=other.device, dtype=other.dtype)

    yield torch.Tensor, "to", tensor_to
    yield torch.Tensor, "cuda", tensor_cuda
    yield torch.Tensor, "type_as", tensor_type_as
    for name in ("tensor", "as_tensor", "asarray"):
        yield torch, name, make_on_host_first(getattr(torch, name))
    attention = _fused_attention(functional.scaled_dot_product_attention)
    yield functional, "scaled_dot_product_attention", attention
    yield clip_grad, "_group_tensors_by_device_and_dtype", _group_tensors


def _constant_replacements() -> Iterator[Replacement]:
    """Functions of `torch.cuda` whose result is always the same."""
    results: dict[str, Any] = {
        "_lazy_init": None,
        "set_device": None,
        "empty_cache": None,
        "synchronize": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "set_rng_state": None,
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "current_device": 0,
        "get_device_name": "pretended",
        "get_device_capability": (9, 0),
    }
    for name, result in results.items():
        yield torch.cuda, name, lambda *_, result=result, **__: result


def _card_replacements(machine: Machine) -> Iterator[Replacement]:
    """Functions of `torch.cuda` about one device."""

    def device_properties(card: Card) -> SimpleNamespace:
        return SimpleNamespace(total_memory=card.memory, name="pretended", major=9, minor=0)

    def reset_peak(card: Card) -> None:
        card.peak = card.alive

    yield torch.cuda, "device_count", lambda: len(machine.cards)
    yield torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state()
    functions: dict[str, Callable[[Card], Any]] = {
        "get_device_properties": device_properties,
        "mem_get_info": lambda card: (card.memory - card.alive, card.memory),
        "memory_allocated": lambda card: card.alive,
        "memory_reserved": lambda card: card.alive,
        "max_memory_allocated": lambda card: card.peak,
        "memory_stats": lambda card: {"num_ooms": card.n_failed},
        "reset_peak_memory_stats": reset_peak,
    }
    for name, function in functions.items():
        yield (
            torch.cuda,
            name,
            lambda device=None, function=function: function(machine.find_card(device)),
        )


def _fused_attention(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention by the CPU's fused kernel.

    Like a GPU's, it keeps no matrix of all pairs of tokens.
    """

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        tensors = [query, key, value]
        if attn_mask is not None:
            tensors.append(attn_mask)
        options: dict[str, Any] = {
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
        }
        if dropout_p or not any(isinstance(tensor, Placed) for tensor in tensors):
            return plain(*tensors, **options)
        device = common_device("attention", tensors, operands_of(*tensors))
        needs_gradient = any(tensor.requires_grad for tensor in tensors)
        if not (torch.is_grad_enabled() and needs_gradient):
            return Placed(plain(*map(held_by, tensors), **options), device)

        if enable_gqa:
            n_heads = query.shape[1]
            queries_per_key = n_heads // key.shape[1]
            key = key.repeat_interleave(queries_per_key, 1, output_size=n_heads)
            value = value.repeat_interleave(queries_per_key, 1, output_size=n_heads)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            minus_infinity = torch.finfo(query.dtype).min
            zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = zeros.masked_fill(~attn_mask, minus_infinity)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        outputs: tuple[torch.Tensor, ...] = kernel(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
        return outputs[0]

    return attention


def _group_tensors(tensor_lists: Sequence[Sequence[torch.Tensor]]) -> dict[Any, Any]:
    """Tensors by device and type, with their indices, as C++ groups those of which it sees both."""
    (tensors,) = tensor_lists
    groups: dict[Any, Any] = {}
    for index, tensor in enumerate(tensors):
        key = (tensor.device, tensor.dtype)
        (group,), indices = groups.setdefault(key, ([[]], []))
        group.append(tensor)
        indices.append(index)
    return groups

"""GPUs that are not there: tensors say they are on `cuda:N`, compute on the CPU, and refuse what a GPU would refuse.

A `Placed` tensor holds a CPU tensor. C++ believes that it is a meta tensor, Python reads `cuda:N` from it. Every
operation comes to `Placed.__torch_dispatch__`, which refuses operands of different places, runs the CPU's kernel on
what they hold, and counts the bytes of the result against the memory of its device.

What this cannot show is written in docs/models.md: kernels, speed, fragmentation, random numbers of a device.
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
    GIB,
    Card,
    Machine,
    Operations,
    Placed,
    agreed,
    held_by,
    moved_to,
    on_host_first,
    place_of,
)


def _attention(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention by the kernel that the CPU takes for it, which like a GPU's keeps no matrix of all pairs of tokens."""

    def attended(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        told = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        if not any(isinstance(each, Placed) for each in told):
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        at = agreed("attention", told, told, set())
        if not (torch.is_grad_enabled() and any(each.requires_grad for each in told)):
            inner = [held_by(each) for each in told]
            options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            return Placed(plain(*inner, **options), at)
        if dropout_p:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            key, value = (
                each.repeat_interleave(query.shape[1] // key.shape[1], 1, output_size=query.shape[1])
                for each in (key, value)
            )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            least = torch.finfo(query.dtype).min
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, least)
        found: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return found

    return attended


def _grouped(lists: Sequence[Sequence[torch.Tensor]]) -> dict[Any, Any]:
    """Tensors by device and type, with their numbers, as C++ groups what it sees the devices of."""
    (tensors,) = lists
    found: dict[Any, Any] = {}
    for number, tensor in enumerate(tensors):
        among, numbers = found.setdefault((place_of(tensor), tensor.dtype), ([[]], []))
        among[0].append(tensor)
        numbers.append(number)
    return found


@contextmanager
def pretended(*memory: int) -> Iterator[Machine]:
    """While open, there are as many GPUs as numbers are given, each with so many bytes; by default one with 80 GiB.

    Tensors of a pretended device must not be used after it.
    """
    made = Machine([Card(number, size) for number, size in enumerate(memory or (80 * GIB,))])
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for where, name, new in _replacements(made):
            stack.enter_context(mock.patch.object(where, name, new, create=True))
        # Parameters are swapped where they are moved: their class changes.
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        placed.current = made
        stack.enter_context(Operations())
        try:
            yield made
        finally:
            placed.current = None


def _replacements(machine: Machine) -> Iterator[tuple[Any, str, Any]]:
    """(object, attribute, value) of all that must know of the pretended devices."""
    yield torch.Tensor, "to", moved_to
    yield (
        torch.Tensor,
        "cuda",
        lambda self, device=None, **_: self.to(torch.device("cuda", machine.card(device).number)),
    )
    yield torch.Tensor, "type_as", lambda self, other: self.to(device=other.device, dtype=other.dtype)
    for name in ("tensor", "as_tensor", "asarray"):
        yield torch, name, on_host_first(getattr(torch, name))
    yield functional, "scaled_dot_product_attention", _attention(functional.scaled_dot_product_attention)
    yield clip_grad, "_group_tensors_by_device_and_dtype", _grouped

    def information(place: Any = None) -> tuple[int, int]:
        card = machine.card(place)
        return card.memory - card.alive, card.memory

    def properties(place: Any = None) -> Any:
        return SimpleNamespace(total_memory=machine.card(place).memory, name="pretended", major=9, minor=0)

    def reset(place: Any = None) -> None:
        machine.card(place).peak = machine.card(place).alive

    cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: len(machine.cards),
        "current_device": lambda: 0,
        "set_device": lambda place: None,
        "get_device_name": lambda place=None: "pretended",
        "get_device_capability": lambda place=None: (9, 0),
        "get_device_properties": properties,
        "mem_get_info": information,
        "memory_allocated": lambda place=None: machine.card(place).alive,
        "memory_reserved": lambda place=None: machine.card(place).alive,
        "max_memory_allocated": lambda place=None: machine.card(place).peak,
        "memory_stats": lambda place=None: {"num_ooms": machine.card(place).failed},
        "reset_peak_memory_stats": reset,
        "empty_cache": lambda: None,
        "synchronize": lambda place=None: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda place=None: torch.get_rng_state(),
        "set_rng_state": lambda state, place=None: None,
    }
    for name, value in cuda.items():
        yield torch.cuda, name, value

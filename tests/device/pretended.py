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

    def attended(  # type: ignore[no-untyped-def]
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    ) -> torch.Tensor:
        told = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        options = dict(dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        if dropout_p or not any(isinstance(each, Placed) for each in told):
            return plain(*told, **options)
        at = agreed("attention", told, told, set())
        if not (torch.is_grad_enabled() and any(each.requires_grad for each in told)):
            return Placed(plain(*map(held_by, told), **options), at)
        if enable_gqa:
            times, heads = query.shape[1] // key.shape[1], query.shape[1]
            key, value = (
                each.repeat_interleave(times, 1, output_size=heads) for each in (key, value)
            )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            least = torch.finfo(query.dtype).min
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
                ~attn_mask, least
            )
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
    made = Machine([Card(number, size) for number, size in enumerate(memory or (80 * placed.GIB,))])
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
        lambda self, at=None, **_: self.to(torch.device("cuda", machine.card(at).number)),
    )
    yield (
        torch.Tensor,
        "type_as",
        lambda self, other: self.to(device=other.device, dtype=other.dtype),
    )
    for name in ("tensor", "as_tensor", "asarray"):
        yield torch, name, on_host_first(getattr(torch, name))
    yield (
        functional,
        "scaled_dot_product_attention",
        _attention(functional.scaled_dot_product_attention),
    )
    yield clip_grad, "_group_tensors_by_device_and_dtype", _grouped

    nothing = "_lazy_init set_device empty_cache synchronize manual_seed manual_seed_all set_rng_state".split()
    always = dict.fromkeys(nothing) | dict.fromkeys(
        ("is_available", "is_initialized", "is_bf16_supported"), True
    )
    always |= {"current_device": 0, "get_device_name": "pretended", "get_device_capability": (9, 0)}
    for name, value in always.items():
        yield torch.cuda, name, lambda *_, value=value, **__: value
    yield torch.cuda, "device_count", lambda: len(machine.cards)
    yield torch.cuda, "get_rng_state", lambda place=None: torch.get_rng_state()
    named: dict[str, Any] = {"name": "pretended", "major": 9, "minor": 0}
    of_card: dict[str, Callable[[Card], Any]] = {
        "get_device_properties": lambda card: SimpleNamespace(total_memory=card.memory, **named),
        "mem_get_info": lambda card: (card.memory - card.alive, card.memory),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda card: card.alive),
        "max_memory_allocated": lambda card: card.peak,
        "memory_stats": lambda card: {"num_ooms": card.failed},
        "reset_peak_memory_stats": lambda card: setattr(card, "peak", card.alive),
    }
    for name, told in of_card.items():
        yield torch.cuda, name, lambda place=None, told=told: told(machine.card(place))

"""Sequences in padded batches of similar length, filled up to a budget of token positions.

A batch is halved if memory runs out. Work that is halved must leave nothing behind when it fails,
so that nothing is measured twice: it may change sums and tables only when it has all the memory
that it needs.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from lamina.engine import budgets

TOKENS = 16384
"""The default budget of a pass, in token positions."""


def by_length(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Groups of indices of similar length.

    The longest ones come first, so that a pass too large for memory fails at once. A group holds at
    most `token_budget` positions, padding included, and at least one index. Equal lengths keep
    their order.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    groups: list[list[int]] = []
    while order:
        longest_length = max(1, lengths[order[0]])
        group_size = max(1, token_budget // longest_length)
        groups.append(order[:group_size])
        order = order[group_size:]
    return groups


def logit_positions(vocabulary: int) -> int:
    """How many positions' logits fit into `budgets.HOST_BYTES` in float32, at least one.

    Three such arrays are alive at once: these logits, their log-probabilities, and the logits of
    the batch before.
    """
    bytes_per_position = 3 * 4 * vocabulary
    return max(1, budgets.HOST_BYTES // bytes_per_position)


def pad_sequences(
    sequences: Sequence[Sequence[int]], device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, zeros on the right, and the mask of real tokens, (lines, T) each, on `device`."""
    longest_length = max(map(len, sequences))
    rows = [[*sequence, *[0] * (longest_length - len(sequence))] for sequence in sequences]
    token_ids = torch.tensor(rows, device=device)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    is_real = torch.arange(longest_length, device=device)[None] < lengths[:, None]
    return token_ids, is_real


Part = TypeVar("Part")
Result = TypeVar("Result")


def run_in_halves(
    work: Callable[[Part], object], part: Part, cut_in_two: Callable[[Part], Sequence[Part]]
) -> None:
    """Do `work` on a part; if memory runs out, do it on smaller and smaller parts.

    cut_in_two: Cuts a part in two; gives nothing for one that cannot be cut.

    Raises torch.cuda.OutOfMemoryError if a part that cannot be cut does not fit.
    """
    try:
        work(part)
        return
    except torch.cuda.OutOfMemoryError:
        smaller_parts = cut_in_two(part)
        if not smaller_parts:
            raise
    # Outside `except`, whose traceback would keep the failed work's tensors alive.
    torch.cuda.empty_cache()
    for smaller_part in smaller_parts:
        run_in_halves(work, smaller_part, cut_in_two)


def shrink_to_memory(
    work: Callable[[int], Result],
    size: int,
    min_size: int = 1,
    undo_work: Callable[[], object] = lambda: None,
) -> tuple[Result, int]:
    """The result of `work` for the first of size, size / 2, size / 4, … that fits, and that size.

    min_size: A size that is not halved any more.
    undo_work: Takes back what a failed try has left behind; the work then starts anew.

    Raises torch.cuda.OutOfMemoryError if a size of at most `min_size` does not fit.
    """
    while True:
        try:
            return work(size), size
        except torch.cuda.OutOfMemoryError:
            if size <= min_size:
                raise
        undo_work()
        torch.cuda.empty_cache()
        size //= 2


def in_two(part: list[Part]) -> list[list[Part]]:
    """Both halves of a list, in its order; empty for a list of a single entry."""
    middle = len(part) // 2
    if not middle:
        return []
    return [part[:middle], part[middle:]]


def reserve_sums(*shape: int, count: int, device: torch.device) -> None:
    """Ask at once for the memory of `count` tensors in float64: it runs out here or not at all."""
    tensors = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(count)]
    del tensors

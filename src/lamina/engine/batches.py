"""Padded batches of sequences of similar length, within a budget of token positions.

A batch is halved if memory runs out. Work that is halved must leave nothing behind when it fails,
or it would count twice. So it allocates all its memory before it changes sums or tables.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from lamina.engine import budgets

TOKENS = 16384
"""The default budget of a pass, in token positions."""


def by_length(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Group the indices of sequences of similar length.

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
    """The number of positions whose float32 logits fit into `budgets.HOST_BYTES`, at least one.

    Three such arrays are alive at once: these logits, their log-probabilities, and the logits of
    the batch before.
    """
    bytes_per_position = 3 * 4 * vocabulary
    return max(1, budgets.HOST_BYTES // bytes_per_position)


def pad_sequences(
    sequences: Sequence[Sequence[int]], device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, zero-padded on the right, and the mask of real tokens, (lines, T), on `device`."""
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

    cut_in_two: Splits a part in two; returns nothing for a part that cannot be split.

    Raises torch.cuda.OutOfMemoryError if a part that cannot be split does not fit.
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
    """Try `work` at size, size / 2, size / 4, … until it fits; return its result and that size.

    min_size: A size up to this one is not halved.
    undo_work: Removes what a failed attempt has left behind, before the next attempt.

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
    """The two halves of a list, in order; empty for a list of a single entry."""
    middle = len(part) // 2
    if not middle:
        return []
    return [part[:middle], part[middle:]]


def reserve_sums(*shape: int, count: int, device: torch.device) -> None:
    """Allocate and free `count` float64 tensors, so that memory runs out here or not at all."""
    tensors = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(count)]
    del tensors

"""Sequences in padded batches of similar length, filled by a budget of token positions, and halved if memory runs out.

Work that is halved must leave nothing behind when it fails, so that nothing is measured twice. It may change sums and
tables only when it has all the memory that it needs.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

TOKENS = 16384  # of a pass by default


def by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Groups of indices of similar length, longest first, so that a pass too large for memory fails at once.

    A group holds at most `tokens` positions, padding included, and at least one index; equal lengths keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    groups = []
    while order:
        size = max(1, tokens // max(1, lengths[order[0]]))
        groups.append(order[:size])
        order = order[size:]
    return groups


def logit_positions(vocabulary: int) -> int:
    """Positions whose logits, as many logarithms of probabilities, and those of the batch before stay below 2 GiB.

    That is what a job asks for beside the libraries and the weights. It is at least one.
    """
    return max(1, (2 << 30) // (3 * 4 * vocabulary))


def padded(
    sequences: Sequence[Sequence[int]], device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, zeros on the right, and the mask of real tokens, (lines, T) each, on `device`."""
    width = max(map(len, sequences))
    ids = torch.tensor(
        [[*sequence, *[0] * (width - len(sequence))] for sequence in sequences], device=device
    )
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    return ids, torch.arange(width, device=device)[None] < lengths[:, None]


P = TypeVar("P")
R = TypeVar("R")


def halved(work: Callable[[P], object], part: P, halves: Callable[[P], Sequence[P]]) -> None:
    """Do `work` on a part; if memory runs out, do it on the parts that `halves` makes of it, until they fit.

    Raises torch.cuda.OutOfMemoryError if a part that has no halves does not fit.
    """
    try:
        work(part)
        return
    except torch.cuda.OutOfMemoryError:
        smaller = halves(part)
        if not smaller:
            raise
    # Outside `except`, whose traceback would keep the failed work's tensors alive.
    torch.cuda.empty_cache()
    for half in smaller:
        halved(work, half, halves)


def fitting(
    work: Callable[[int], R], size: int, least: int = 1, forget: Callable[[], object] = lambda: None
) -> tuple[R, int]:
    """The result of `work` for the largest of `size` and its halves that fits into memory, and that size.

    The work begins anew with a smaller size; `forget` takes back what a failed try has left behind.

    Raises torch.cuda.OutOfMemoryError if a size of at most `least` does not fit.
    """
    while True:
        try:
            return work(size), size
        except torch.cuda.OutOfMemoryError:
            if size <= least:
                raise
        forget()
        torch.cuda.empty_cache()
        size //= 2


def in_two(part: list[P]) -> list[list[P]]:
    """Both halves of a list, in its order; empty for a list of a single entry."""
    middle = len(part) // 2
    return [part[:middle], part[middle:]] if middle else []


def reserve(*shape: int, count: int, on: torch.device) -> None:
    """Ask for the memory of `count` tensors (shape) in float64 at once, so that it runs out here or not at all."""
    del [torch.empty(shape, dtype=torch.float64, device=on) for _ in range(count)][:]

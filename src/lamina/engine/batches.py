"""Sequences in padded batches of similar length, filled by a budget of token positions."""

from collections.abc import Sequence

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


def padded(sequences: Sequence[Sequence[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, zeros on the right, and the mask of real tokens, (lines, T) each, on `device`."""
    width = max(map(len, sequences))
    ids = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences], device=device)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    return ids, torch.arange(width, device=device)[None] < lengths[:, None]

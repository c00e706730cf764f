"""Errors of the repaired stream, token by token. They do not follow from the moments, so they need a second pass.

The pass runs over the held-out samples and half as many of the others, and costs three tenths of the first pass.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lamina.data.splitting import documents
from lamina.engine import taps
from lamina.engine.batches import TOKENS, reserve
from lamina.engine.moments import BATCH, rows
from lamina.engine.sources import Source, split
from lamina.models.boundary import Boundary, Patch
from lamina.models.structure import text_config
from lamina.relevance.statistics import bootstrap_weights


@dataclass
class _Sums:
    """Weighted sums of one boundary, of the errors in Y before the repair and after it."""

    absolute: (
        torch.Tensor
    )  # absolute errors summed over tokens, before and after, of held-out and others, (2, 2, C)
    tokens: torch.Tensor  # weight of these tokens, (2,)
    squares: (
        torch.Tensor
    )  # squared errors before and after, and squares of Y itself, by sample, (3, samples)


def measure(
    model: PreTrainedModel,
    sources: Sequence[Source],
    patches: Mapping[Boundary, Patch],
    seed: int,
    tokens: int = TOKENS,
    run: taps.Run = taps.run,
) -> dict[Boundary, dict[str, Any]]:
    """The columns that this adds to the row of each patch in table `patches`; `run` is the pass that gives the streams.

    The `patches` are those fitted without the held-out samples of the same `seed`. Standard errors are those of a
    bootstrap over held-out documents, null for a single one.
    """
    held, others = [], []
    for source, flags in zip(sources, split(sources, seed), strict=True):
        if not source.weight:
            continue
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for sequence, flag in zip(source.sequences, flags, strict=True):
            parts[flag].append((source.weight, sequence))
        held += parts[True]
        others += random.Random(seed).sample(
            parts[False], min(max(1, len(parts[True]) // 2), len(parts[False]))
        )
    chosen = held + others
    weights = torch.tensor(
        [weight for weight, _ in chosen], dtype=torch.float64, device=model.device
    )
    channels = int(text_config(model).hidden_size)
    sums = [
        _Sums(*(weights.new_zeros(shape) for shape in ((2, 2, channels), (2,), (3, len(chosen)))))
        for _ in patches
    ]

    def add(batch: taps.Batch, streams: Mapping[float, torch.Tensor]) -> None:
        numbers = torch.tensor(batch.samples, device=model.device)[:, None].expand(batch.real.shape)
        # Memory runs out before anything is added: for X, Y, what is missing of Y twice, and their products and copies.
        reserve(
            min(batch.real.numel(), max(1, BATCH // channels)), channels, count=8, on=model.device
        )
        for ((start, end), patch), boundary_sums in zip(patches.items(), sums, strict=True):
            # Not all patches at once: in float64 they would take as much as the sums they were fitted on.
            wide = patch.to(model.device, torch.float64)
            for x, y, number in rows(streams[start], streams[end], numbers, wanted=batch.real):
                sample = number.long()
                group, weight = (sample >= len(held)).long(), weights[sample]
                boundary_sums.tokens.index_add_(0, group, weight)
                before, after = y - x, y - wide.repaired(x)
                for place, error in enumerate((before, after)):
                    boundary_sums.absolute[place].index_add_(
                        0, group, weight[:, None] * error.abs()
                    )
                for place, vector in enumerate((before, after, y)):
                    boundary_sums.squares[place].index_add_(
                        0, sample, weight * vector.square().sum(1)
                    )

    places, tokens = (
        [place for boundary in patches for place in boundary],
        min(tokens, BATCH // channels),
    )
    run(model, [sequence for _, sequence in chosen], places, add, tokens, ())
    (copies,) = documents([[sequence for _, sequence in held]])
    return {
        at: _columns(boundary_sums, copies) for at, boundary_sums in zip(patches, sums, strict=True)
    }


def _columns(sums: _Sums, copies: Sequence[int]) -> dict[str, Any]:
    """The columns, from sums and the document of every held-out sample."""
    held = 1 + max(copies)
    (before, fit_before), (after, fit_after) = (sums.absolute / sums.tokens[:, None]).cpu()
    squares = np.zeros((held, 3))
    np.add.at(squares, list(copies), sums.squares[:, : len(copies)].cpu().numpy().T)
    draws = np.sqrt(bootstrap_weights(held, seed=0)[1:] @ squares)
    errors = draws[:, :2] / np.maximum(draws[:, 2:], np.finfo(float).tiny)
    spread = errors.std(axis=0, ddof=1).tolist() if held > 1 else [None, None]
    return {
        "n_heldout": held,
        "heldout_error_before_stderr": spread[0],
        "heldout_error_stderr": spread[1],
        "mae_before": float(before.mean()),
        "mae_after": float(after.mean()),
        "fit_mae_before": float(fit_before.mean()),
        "fit_mae_after": float(fit_after.mean()),
        "channel_mae_before": before.tolist(),
        "channel_mae_after": after.tolist(),
    }

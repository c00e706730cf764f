"""Streaming statistics of the residual stream at the boundaries of a run, from which linear repairs are fitted.

X = h_start and Y = h_end of the unpruned model, one row per real token. Only sums over tokens are kept, in float64;
no activation outlives its batch.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import text_config
from lamina.models.variant import Boundary, Patch
from lamina.streams import taps

HELDOUT_SHARE = 0.2
# Rows turned into float64 at a time: at C = 4096 a chunk is 128 MiB.
_CHUNK = 4096


@dataclass
class Moments:
    """Sums over the tokens of one split; D = Y - X.

    Attributes
    ----------
    xx, xd : XᵀX and XᵀD, (C, C). `xx` is shared between boundaries with the same start.
    x, d : column sums, (C,).
    dd : sum of squares of D, scalar.
    tokens : number of rows.
    """

    xx: torch.Tensor
    xd: torch.Tensor
    x: torch.Tensor
    d: torch.Tensor
    dd: torch.Tensor
    tokens: int = 0

    def plus(self, other: "Moments") -> "Moments":
        """Moments of both splits together."""
        return Moments(
            self.xx + other.xx,
            self.xd + other.xd,
            self.x + other.x,
            self.d + other.d,
            self.dd + other.dd,
            self.tokens + other.tokens,
        )

    def output_norm(self) -> float:
        """‖Y‖, from Y = X + D."""
        square = torch.trace(self.xx) + 2 * torch.trace(self.xd) + self.dd
        return float(square.clamp_min(0).sqrt())

    def residual_norm(self, operator: torch.Tensor, bias: torch.Tensor | None = None) -> float:
        """‖D - X M - 1 b‖ of an operator M (C, C) and bias b (C,), without the tokens themselves."""
        square = self.dd - 2 * (operator * self.xd).sum() + (operator * (self.xx @ operator)).sum()
        if bias is not None:
            square = square - 2 * bias @ self.d + 2 * (self.x @ operator) @ bias + self.tokens * (bias @ bias)
        return float(square.clamp_min(0).sqrt())


@dataclass
class Statistics:
    """What a recovery is fitted on: the moments of the fit samples and of the held-out samples."""

    fit: Moments
    heldout: Moments
    n_samples: int

    def counts(self) -> dict[str, int]:
        """Samples and tokens of both splits, as table `patches` names them."""
        return {"n_samples": self.n_samples, "n_tokens": self.fit.tokens + self.heldout.tokens}


@dataclass
class AbsoluteErrors:
    """Mean absolute errors per channel (C,), over held-out tokens, before and after the repair."""

    before: torch.Tensor
    after: torch.Tensor


def split(count: int, seed: int, share: float = HELDOUT_SHARE) -> list[bool]:
    """For each of `count` samples, whether it is held out: a seeded share, at least one of each.

    Raises
    ------
    LaminaError
        If there are fewer than two samples.
    """
    if count < 2:
        raise LaminaError(
            f"a patch needs at least 2 calibration samples, to fit on one and check on the other; there is {count}. "
            "Raise the calibration's limit."
        )
    held = max(1, round(count * share))
    chosen = set(random.Random(seed).sample(range(count), held))
    return [number in chosen for number in range(count)]


def collect(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    boundaries: Sequence[Boundary],
    seed: int,
    tokens: int = 16384,
    memory: int = 8 << 30,
) -> Iterator[tuple[Boundary, Statistics]]:
    """Statistics of each boundary, from the unpruned `model`, in the order of the boundaries.

    One forward pass serves all boundaries whose moments fit into `memory` bytes together. Fit each as it comes: the
    moments of one pass are given up before the next.
    """
    held = split(len(sequences), seed)
    channels = int(text_config(model).hidden_size)
    per_pass = max(1, memory // (4 * 8 * channels * channels))
    wanted = sorted(set(boundaries))
    for first in range(0, len(wanted), per_pass):
        found = _one_pass(model, sequences, wanted[first : first + per_pass], held, tokens, channels)
        while found:
            boundary = next(iter(found))
            yield boundary, found.pop(boundary)


def _one_pass(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    boundaries: Sequence[Boundary],
    held: Sequence[bool],
    tokens: int,
    channels: int,
) -> dict[Boundary, Statistics]:
    fit, heldout = _empty(boundaries, channels, model.device), _empty(boundaries, channels, model.device)
    flags = torch.tensor(held, device=model.device)

    def add(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        out = flags[batch.samples][:, None]
        _accumulate(fit, boundaries, streams, batch.real & ~out)
        _accumulate(heldout, boundaries, streams, batch.real & out)

    taps.run(model, sequences, [place for boundary in boundaries for place in boundary], add, tokens)
    return {boundary: Statistics(fit[boundary], heldout[boundary], len(sequences)) for boundary in boundaries}


def absolute_errors(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    patches: Mapping[Boundary, Patch],
    seed: int,
    tokens: int = 16384,
) -> dict[Boundary, AbsoluteErrors]:
    """Mean absolute error per channel over the held-out samples, in a second pass: it is no function of the moments.

    `patches` are those fitted without the held-out samples of the same `seed`.
    """
    flags = split(len(sequences), seed)
    held = [sequence for sequence, flag in zip(sequences, flags, strict=True) if flag]
    totals: dict[Boundary, list[Any]] = {boundary: [0.0, 0.0, 0] for boundary in patches}

    def add(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        for (start, end), patch in patches.items():
            for x, y in _rows(streams[start], streams[end], batch.real):
                error = y - x
                left = error - x @ patch.operator.double().to(x.device)
                if patch.bias is not None:
                    left = left - patch.bias.double().to(x.device)
                total = totals[start, end]
                total[0] = total[0] + error.abs().sum(0)
                total[1] = total[1] + left.abs().sum(0)
                total[2] += len(x)

    taps.run(model, held, [place for boundary in patches for place in boundary], add, tokens)
    return {b: AbsoluteErrors(before / count, after / count) for b, (before, after, count) in totals.items()}


def _rows(x: torch.Tensor, y: torch.Tensor, wanted: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The wanted tokens of two streams (lines, T, C) as rows (tokens, C) in float64, a chunk at a time."""
    for line, place in zip(*(part.split(_CHUNK) for part in wanted.nonzero(as_tuple=True)), strict=True):
        if len(line):
            yield x[line, place].double(), y[line, place].double()


def _empty(boundaries: Sequence[Boundary], channels: int, on: torch.device) -> dict[Boundary, Moments]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=on)

    grams = {start: (zeros(channels, channels), zeros(channels)) for start, _ in boundaries}
    return {
        (start, end): Moments(grams[start][0], zeros(channels, channels), grams[start][1], zeros(channels), zeros())
        for start, end in boundaries
    }


def _accumulate(
    sums: Mapping[Boundary, Moments],
    boundaries: Sequence[Boundary],
    streams: Mapping[int, torch.Tensor],
    wanted: torch.Tensor,
) -> None:
    """Add the tokens (lines, T) that are `wanted` of a batch."""
    seen: set[int] = set()
    for start, end in boundaries:
        moments = sums[start, end]
        for x, y in _rows(streams[start], streams[end], wanted):
            d = y - x
            if start not in seen:
                # Shared by all boundaries with this start, so added once per batch.
                moments.xx.addmm_(x.T, x)
                moments.x.add_(x.sum(0))
            moments.xd.addmm_(x.T, d)
            moments.d.add_(d.sum(0))
            moments.dd.add_(d.square().sum())
            moments.tokens += len(x)
        seen.add(start)

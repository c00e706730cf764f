"""Streaming statistics of the residual stream at the boundaries of a run, from which linear repairs are fitted.

X = h_start and Y = h_end of the unpruned model, one row per real token. Only sums over tokens are kept, in float64;
no activation outlives its batch.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import layers_of, text_config
from lamina.models.variant import Boundary, Patch, assert_finite

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


def batches(
    sequences: Sequence[Sequence[int]], tokens: int, flags: Sequence[bool]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Right-padded batches of similar length: ids (B, T), mask (B, T) of real tokens, held-out flag (B,).

    A batch holds at most `tokens` positions, padding included, and at least one sequence.
    """
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * len(sequences[order[stop]]) <= tokens:
            stop += 1
        members = order[start:stop]
        width = len(sequences[members[-1]])
        ids = torch.zeros(len(members), width, dtype=torch.long)
        mask = torch.zeros(len(members), width, dtype=torch.bool)
        for row, number in enumerate(members):
            ids[row, : len(sequences[number])] = torch.as_tensor(sequences[number])
            mask[row, : len(sequences[number])] = True
        yield ids, mask, torch.tensor([flags[number] for number in members])
        start = stop


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
    on = next(model.parameters()).device
    fit, heldout = _empty(boundaries, channels, on), _empty(boundaries, channels, on)

    def add(streams: Mapping[int, torch.Tensor], held_rows: torch.Tensor) -> None:
        _accumulate(fit, boundaries, {place: hidden[~held_rows] for place, hidden in streams.items()})
        _accumulate(heldout, boundaries, {place: hidden[held_rows] for place, hidden in streams.items()})

    stream(model, sequences, boundaries, held, tokens, add)
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

    def add(streams: Mapping[int, torch.Tensor], _: torch.Tensor) -> None:
        for (start, end), patch in patches.items():
            for x, y in zip(streams[start].split(_CHUNK), streams[end].split(_CHUNK), strict=True):
                x, error = x.double(), y.double() - x.double()
                left = error - x @ patch.operator.double()
                if patch.bias is not None:
                    left = left - patch.bias.double()
                total = totals[start, end]
                total[0] = total[0] + error.abs().sum(0)
                total[1] = total[1] + left.abs().sum(0)
                total[2] += len(x)

    stream(model, held, list(patches), [True] * len(held), tokens, add)
    return {b: AbsoluteErrors(before / count, after / count) for b, (before, after, count) in totals.items()}


def stream(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    boundaries: Sequence[Boundary],
    held: Sequence[bool],
    tokens: int,
    add: Callable[[Mapping[int, torch.Tensor], torch.Tensor], None],
) -> None:
    """Run `model` over the sequences and hand `add` the stream h_b (tokens, C) of every boundary b of each batch.

    Padding is gone from what `add` sees; its second argument says of each row whether its sample is held out.

    Raises
    ------
    LaminaError
        If the stream holds NaN.
    """
    places = sorted({place for boundary in boundaries for place in boundary})
    on = next(model.parameters()).device
    body = model.base_model
    with torch.no_grad(), capturing(model, places) as captured:
        for ids, mask, flags in batches(sequences, tokens, held):
            ids, mask = ids.to(on), mask.to(on)
            captured.clear()
            body(input_ids=ids, attention_mask=mask.long(), use_cache=False)
            rows = flags.to(on)[:, None].expand(mask.shape)[mask]
            streams = {place: hidden.view(*mask.shape, -1)[mask] for place, hidden in captured.items()}
            for hidden in streams.values():
                assert_finite(hidden, model.config.model_type, "the forward pass over the calibration")
            add(streams, rows)


@contextmanager
def capturing(model: PreTrainedModel, places: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
    """While open, every forward pass puts the stream at each boundary in `places` into the mapping.

    Boundary b is the input of layer b; b = L is the output of the last layer, before the final norm.
    """
    layers = layers_of(model)
    captured: dict[int, torch.Tensor] = {}

    def entering(place: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            captured[place] = args[0] if args else kwargs["hidden_states"]

        return hook

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        captured[len(layers)] = output[0] if isinstance(output, tuple) else output

    handles = [
        layers[place].register_forward_pre_hook(entering(place), with_kwargs=True)
        if place < len(layers)
        else layers[-1].register_forward_hook(leaving)
        for place in places
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def _empty(boundaries: Sequence[Boundary], channels: int, on: torch.device) -> dict[Boundary, Moments]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=on)

    grams = {start: (zeros(channels, channels), zeros(channels)) for start, _ in boundaries}
    return {
        (start, end): Moments(grams[start][0], zeros(channels, channels), grams[start][1], zeros(channels), zeros())
        for start, end in boundaries
    }


def _accumulate(
    sums: Mapping[Boundary, Moments], boundaries: Sequence[Boundary], streams: Mapping[int, torch.Tensor]
) -> None:
    seen: set[int] = set()
    for start, end in boundaries:
        moments = sums[start, end]
        for x, y in zip(streams[start].split(_CHUNK), streams[end].split(_CHUNK), strict=True):
            x = x.double()
            d = y.double() - x
            if start not in seen:
                # Shared by all boundaries with this start, so added once per batch.
                moments.xx.addmm_(x.T, x)
                moments.x.add_(x.sum(0))
            moments.xd.addmm_(x.T, d)
            moments.d.add_(d.sum(0))
            moments.dd.add_(d.square().sum())
            moments.tokens += len(x)
        seen.add(start)

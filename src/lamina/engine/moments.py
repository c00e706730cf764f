"""Streaming statistics of the residual stream at the boundaries of a run, from which linear repairs are fitted.

X = h_start and Y = h_end of the unpruned model, one row per real token; a row of a source with weight w counts w times,
as if it were multiplied by sqrt(w). Only sums over tokens are kept, in float64; no activation outlives its batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine import budgets, taps
from lamina.engine import sources as over
from lamina.engine.batches import TOKENS, reserve
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary
from lamina.models.structure import text_config

# Numbers of one stream in a batch, 16 MiB in float64: what a pass needs beside the moments then depends neither on the
# number of tokens nor on C.
BATCH = 1 << 21


@dataclass
class Moments:
    """Sums over the tokens of one split; D = Y - X."""

    xx: torch.Tensor  # XᵀX, (C, C), shared between boundaries with the same start
    xd: torch.Tensor  # XᵀD, (C, C)
    x: torch.Tensor  # column sums, (C,)
    d: torch.Tensor
    dd: torch.Tensor  # sum of squares of D, scalar
    weight: float = 0.0  # sum of the weights of the rows, by which means are taken
    tokens: int = 0  # number of rows
    yy: torch.Tensor | None = (
        None  # sum of squares of Y, scalar; only if X is not the stream at the start of the run
    )

    def plus(self, other: "Moments") -> "Moments":
        pairs = ((getattr(self, name), getattr(other, name)) for name in vars(self))
        sums: list[Any] = [None if one is None or two is None else one + two for one, two in pairs]
        return Moments(*sums)

    def centred(self, x: torch.Tensor, d: torch.Tensor) -> "Moments":
        """Moments of the same rows less x (C,) and d (C,), which need not be their own means."""
        xx = (
            self.xx
            - torch.outer(self.x, x)
            - torch.outer(x, self.x)
            + self.weight * torch.outer(x, x)
        )
        xd = (
            self.xd
            - torch.outer(self.x, d)
            - torch.outer(x, self.d)
            + self.weight * torch.outer(x, d)
        )
        dd = self.dd - 2 * d @ self.d + self.weight * d @ d
        return Moments(
            xx, xd, self.x - self.weight * x, self.d - self.weight * d, dd, self.weight, self.tokens
        )

    def output_norm(self) -> float:
        """‖Y‖, from Y = X + D."""
        square = (
            self.yy
            if self.yy is not None
            else torch.trace(self.xx) + 2 * torch.trace(self.xd) + self.dd
        )
        return float(square.clamp_min(0).sqrt())

    def residual_norm(self, operator: torch.Tensor, bias: torch.Tensor | None = None) -> float:
        """‖D - X M - 1 b‖ of an operator M (C, C) and bias b (C,), without the tokens themselves."""
        square = self.dd - 2 * (operator * self.xd).sum() + (operator * (self.xx @ operator)).sum()
        if bias is not None:
            square = (
                square
                - 2 * bias @ self.d
                + 2 * (self.x @ operator) @ bias
                + self.weight * (bias @ bias)
            )
        return float(square.clamp_min(0).sqrt())


class Sums(Protocol):
    """Sums over the tokens of one split, of whatever a repair needs."""

    tokens: int

    def plus(self, other: Self) -> Self:
        """Sums of both splits together."""


S = TypeVar("S", bound=Sums)


@dataclass
class Statistics(Generic[S]):
    """What a repair is fitted on: sums over the fit samples and over the held-out samples."""

    fit: S
    heldout: S
    n_samples: int

    def whole(self) -> S:
        return self.fit.plus(self.heldout)

    def counts(self) -> dict[str, int]:
        """Samples and tokens of both splits, as table `patches` names them."""
        return {"n_samples": self.n_samples, "n_tokens": self.fit.tokens + self.heldout.tokens}


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    seed: int,
    tokens: int = TOKENS,
    memory: int | None = None,
    regressors: Mapping[float, nn.Module] | None = None,
    run: taps.Run = taps.run,
) -> Iterator[tuple[Boundary, Statistics[Moments]]]:
    """Statistics of each boundary, from the unpruned `model`, in the order of the boundaries.

    A share of the documents of each source is held out; a source of weight 0 only takes part in that draw. One forward
    pass serves all boundaries whose sums fit into `memory` bytes together, by default those of `budgets.sums_budget`.
    Fit each boundary as it comes: the sums of one pass are freed before the next. With `regressors`, X is the output of
    the module for a boundary's start, and not the stream there; `run` can give another stream, see `taps.entering`.
    """
    channels, inputs = int(text_config(model).hidden_size), dict(regressors or {})
    memory = budgets.sums_budget(channels) if memory is None else memory
    tokens = min(tokens, BATCH // channels)
    samples = over.counted(sources)
    for part in turns(sorted(set(boundaries)), channels, memory):
        places = [place for boundary in part for place in boundary]
        starts = sorted({start for start, _ in part if start in inputs})
        fit, heldout = empty(part, channels, model.device), empty(part, channels, model.device)

        def add(
            batch: taps.Batch,
            streams: Mapping[float, torch.Tensor],
            held: torch.Tensor,
            weight: float,
            splits: Sequence[Mapping[Boundary, Moments]] = (fit, heldout),
            starts: Sequence[float] = starts,
        ) -> None:
            given = dict(zip(starts, batch.outputs, strict=True))
            for sums, lines in zip(splits, (~held, held), strict=True):
                accumulate(sums, streams, given, batch.real & lines[:, None], weight)

        over.run(
            model, sources, places, add, seed, tokens, [inputs[start] for start in starts], run
        )
        for boundary in part:
            yield boundary, Statistics(fit.pop(boundary), heldout.pop(boundary), samples)


def turns(boundaries: Sequence[Boundary], channels: int, memory: int) -> Iterator[list[Boundary]]:
    """The boundaries, in their order, in turns whose sums fit into `memory` bytes, or of a single boundary."""
    part: list[Boundary] = []
    for boundary in boundaries:
        starts = {start for start, _ in (*part, boundary)}
        if part and budgets.sums_bytes(len(part) + 1, len(starts), channels) > memory:
            yield part
            part = []
        part.append(boundary)
    if part:
        yield part


def rows(*streams: torch.Tensor, wanted: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The wanted tokens of streams (lines, T, C) as rows (tokens, C) in float64, a chunk at a time."""
    for line, place in _chunks(wanted, streams[0].shape[-1]):
        yield [stream[line, place].double() for stream in streams]


def _chunks(wanted: torch.Tensor, channels: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Lines and places of the wanted tokens, BATCH numbers of a stream at a time. This waits for a GPU."""
    parts = [part.split(max(1, BATCH // channels)) for part in wanted.nonzero(as_tuple=True)]
    return [(line, place) for line, place in zip(*parts, strict=True) if len(line)]


def empty(
    boundaries: Sequence[Boundary], channels: int, on: torch.device
) -> dict[Boundary, Moments]:
    """Sums over no tokens; boundaries with the same start share the sums of X alone."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=on)

    grams = {start: (zeros(channels, channels), zeros(channels)) for start, _ in boundaries}
    return {
        (start, end): Moments(
            grams[start][0], zeros(channels, channels), grams[start][1], zeros(channels), zeros()
        )
        for start, end in boundaries
    }


def accumulate(
    sums: Mapping[Boundary, Moments],
    streams: Mapping[float, torch.Tensor],
    inputs: Mapping[float, torch.Tensor],
    wanted: torch.Tensor,
    weight: float,
) -> None:
    """Add the tokens (lines, T) that are `wanted` of a batch, each `weight` times; `inputs` stand in for X."""
    seen: set[float] = set()
    channels = next(iter(streams.values())).shape[-1]
    chunks = _chunks(wanted, channels)
    # Memory must run out before anything is added: X, Y, the stand-in for X, and two copies. The amount is the same for
    # any wanted tokens of a batch, so that it cannot run out for the second part of them.
    reserve(
        min(wanted.numel(), max(1, BATCH // channels)),
        channels,
        count=5 if inputs else 4,
        on=wanted.device,
    )
    for (start, end), moments in sums.items():
        given = [inputs[start]] if inputs else []
        for line, place in chunks:
            h, y, *other = (
                stream[line, place].double() for stream in (streams[start], streams[end], *given)
            )
            if inputs:
                square = weight * y.square().sum()
                moments.yy = square if moments.yy is None else moments.yy + square
            x, d = other[0] if other else h, y.sub_(h)
            if start not in seen:
                # Shared by all boundaries with this start, so added once per batch.
                moments.xx.addmm_(x.T, x, alpha=weight)
                moments.x.add_(x.sum(0), alpha=weight)
            moments.xd.addmm_(x.T, d, alpha=weight)
            moments.d.add_(d.sum(0), alpha=weight)
            moments.dd.add_(torch.linalg.vector_norm(d) ** 2, alpha=weight)
            moments.weight += weight * len(x)
            moments.tokens += len(x)
        seen.add(start)

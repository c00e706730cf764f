"""Sums over the tokens of the residual stream, from which linear repairs are fitted.

For a run of layers, X = h_start and Y = h_end of the base model have one row per real token. A
row of a source with weight w counts w times, as if it were multiplied by sqrt(w). Only sums over
tokens are kept, in float64; no activation outlives its batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.engine import budgets, sources, taps
from lamina.engine.batches import TOKENS, reserve_sums
from lamina.engine.sources import Source
from lamina.models.boundary import Boundary
from lamina.models.structure import text_config

BATCH = 1 << 21
"""Numbers of one stream in a batch: 16 MiB in float64.

Apart from the moments, the memory of a pass then depends neither on the number of tokens nor on C.
"""


@dataclass
class Moments:
    """Sums over the tokens of one split; D = Y - X."""

    xx: torch.Tensor
    """XᵀX, (C, C), shared between boundaries with the same start."""
    xd: torch.Tensor
    """XᵀD, (C, C)."""
    x: torch.Tensor
    """Column sums of X, (C,), shared like `xx`."""
    d: torch.Tensor
    """Column sums of D, (C,)."""
    dd: torch.Tensor
    """‖D‖², scalar."""
    weight: float = 0.0
    """Sum of the weights of the rows. Means are divided by it."""
    tokens: int = 0
    """Number of rows."""
    yy: torch.Tensor | None = None
    """‖Y‖², scalar; only if X is not the stream at the start of the run."""

    def plus(self, other: "Moments") -> "Moments":
        """The sums over the tokens of both."""
        yy: torch.Tensor | None = None
        if self.yy is not None and other.yy is not None:
            yy = self.yy + other.yy
        return Moments(
            xx=self.xx + other.xx,
            xd=self.xd + other.xd,
            x=self.x + other.x,
            d=self.d + other.d,
            dd=self.dd + other.dd,
            weight=self.weight + other.weight,
            tokens=self.tokens + other.tokens,
            yy=yy,
        )

    def centred(self, x: torch.Tensor, d: torch.Tensor) -> "Moments":
        """Moments of the rows minus x (C,) and d (C,), which need not be their own means."""
        centred_xx = self.xx - torch.outer(self.x, x) - torch.outer(x, self.x)
        centred_xx = centred_xx + self.weight * torch.outer(x, x)
        centred_xd = self.xd - torch.outer(self.x, d) - torch.outer(x, self.d)
        centred_xd = centred_xd + self.weight * torch.outer(x, d)
        return Moments(
            xx=centred_xx,
            xd=centred_xd,
            x=self.x - self.weight * x,
            d=self.d - self.weight * d,
            dd=self.dd - 2 * d @ self.d + self.weight * d @ d,
            weight=self.weight,
            tokens=self.tokens,
        )

    def output_norm(self) -> float:
        """‖Y‖, from Y = X + D."""
        squared_norm = self.yy
        if squared_norm is None:
            squared_norm = torch.trace(self.xx) + 2 * torch.trace(self.xd) + self.dd
        return float(squared_norm.clamp_min(0).sqrt())

    def residual_norm(self, operator: torch.Tensor, bias: torch.Tensor | None = None) -> float:
        """‖D - X M - 1 b‖ of an operator M (C, C) and a bias b (C,), from the sums alone."""
        squared_norm = self.dd - 2 * (operator * self.xd).sum()
        squared_norm = squared_norm + (operator * (self.xx @ operator)).sum()
        if bias is not None:
            squared_norm = squared_norm - 2 * bias @ self.d + 2 * (self.x @ operator) @ bias
            squared_norm = squared_norm + self.weight * (bias @ bias)
        return float(squared_norm.clamp_min(0).sqrt())

    def add_inputs(self, x: torch.Tensor, weight: float) -> None:
        """Add rows (tokens, C) to the sums of X, which boundaries with the same start share."""
        self.xx.addmm_(x.T, x, alpha=weight)
        self.x.add_(x.sum(0), alpha=weight)

    def add_differences(self, x: torch.Tensor, d: torch.Tensor, weight: float) -> None:
        """Add rows (tokens, C) to all other sums except ‖Y‖²."""
        self.xd.addmm_(x.T, d, alpha=weight)
        self.d.add_(d.sum(0), alpha=weight)
        self.dd.add_(torch.linalg.vector_norm(d) ** 2, alpha=weight)
        self.weight += weight * len(x)
        self.tokens += len(x)

    def add_outputs(self, y: torch.Tensor, weight: float) -> None:
        """Add rows (tokens, C) to ‖Y‖²."""
        squared = weight * y.square().sum()
        self.yy = squared if self.yy is None else self.yy + squared


class Sums(Protocol):
    """Sums over the tokens of one split; each repair defines its own."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""

    def plus(self, other: Self) -> Self:
        """Sums of both splits together."""


SplitSums = TypeVar("SplitSums", bound=Sums)


@dataclass
class Statistics(Generic[SplitSums]):
    """What a repair is fitted on: sums over the fit samples and over the held-out samples."""

    fit: SplitSums
    heldout: SplitSums
    n_samples: int

    def whole(self) -> SplitSums:
        """Sums over all samples."""
        return self.fit.plus(self.heldout)

    def counts(self) -> dict[str, int]:
        """Samples and tokens of both splits, by the column names of table `patches`."""
        return {"n_samples": self.n_samples, "n_tokens": self.fit.tokens + self.heldout.tokens}


def collect_moments(
    model: PreTrainedModel,
    calibrations: Sequence[Source],
    boundaries: Sequence[Boundary],
    seed: int,
    token_budget: int = TOKENS,
    max_bytes: int | None = None,
    regressors: Mapping[float, nn.Module] | None = None,
    run: taps.Run = taps.run_sequences,
) -> Iterator[tuple[Boundary, Statistics[Moments]]]:
    """Statistics of each boundary, from the base model, in the order of the boundaries.

    A share of each calibration's documents is held out. A calibration of weight 0 only takes part
    in that draw. Fit each boundary as it is yielded: the sums of one pass are freed before the
    next.

    token_budget: The budget of a pass, in token positions.
    max_bytes: The limit of the sums of one pass, by default `budgets.sums_budget`.
    regressors: By a boundary's start, a module whose output is X instead of the stream there.
    run: Runs the model; can replace the stream at a boundary, see `taps.enter_at_boundary`.
    """
    n_channels = int(text_config(model).hidden_size)
    if max_bytes is None:
        max_bytes = budgets.sums_budget(n_channels)
    token_budget = min(token_budget, BATCH // n_channels)
    input_modules = dict(regressors or {})
    n_samples = sources.count_samples(calibrations)
    for turn_boundaries in split_boundaries(sorted(set(boundaries)), n_channels, max_bytes):
        input_starts = sorted({start for start, _ in turn_boundaries if start in input_modules})
        turn_modules = [input_modules[start] for start in input_starts]
        sums = _TurnSums(turn_boundaries, input_starts, n_channels, model.device)
        positions = [position for boundary in turn_boundaries for position in boundary]
        sources.run_sources(
            model, calibrations, positions, sums.add_batch, seed, token_budget, turn_modules, run
        )
        for boundary in turn_boundaries:
            # A local name would keep the popped sums alive until the next boundary.
            yield (
                boundary,
                Statistics(sums.fit.pop(boundary), sums.heldout.pop(boundary), n_samples),
            )


class _TurnSums:
    """The moments of some boundaries, collected in one pass: a consumer for `run_sources`."""

    def __init__(
        self,
        boundaries: Sequence[Boundary],
        input_starts: Sequence[float],
        n_channels: int,
        device: torch.device,
    ) -> None:
        self.input_starts = input_starts
        self.fit = zero_moments(boundaries, n_channels, device)
        self.heldout = zero_moments(boundaries, n_channels, device)

    def add_batch(
        self,
        batch: taps.Batch,
        streams: Mapping[float, torch.Tensor],
        is_heldout: torch.Tensor,
        weight: float,
    ) -> None:
        """Add the tokens of a batch to the sums of their split."""
        inputs = dict(zip(self.input_starts, batch.outputs, strict=True))
        add_to_sums(self.fit, streams, inputs, batch.real & ~is_heldout[:, None], weight)
        add_to_sums(self.heldout, streams, inputs, batch.real & is_heldout[:, None], weight)


def split_boundaries(
    boundaries: Sequence[Boundary], n_channels: int, max_bytes: int
) -> Iterator[list[Boundary]]:
    """Split the boundaries, in order, into turns whose sums fit into `max_bytes` bytes.

    A turn has at least one boundary.
    """
    turn: list[Boundary] = []
    for boundary in boundaries:
        starts = {start for start, _ in (*turn, boundary)}
        if turn and budgets.sums_bytes(len(turn) + 1, len(starts), n_channels) > max_bytes:
            yield turn
            turn = []
        turn.append(boundary)
    if turn:
        yield turn


def iterate_token_rows(
    *streams: torch.Tensor, is_wanted: torch.Tensor
) -> Iterator[list[torch.Tensor]]:
    """The wanted tokens of streams (lines, T, C) as rows (tokens, C) in float64, a chunk at a time.

    is_wanted: (lines, T), boolean.
    """
    for lines, tokens in _split_tokens(is_wanted, streams[0].shape[-1]):
        yield [stream[lines, tokens].double() for stream in streams]


def _split_tokens(
    is_wanted: torch.Tensor, n_channels: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Line and index of the wanted tokens, in chunks of BATCH values of a stream.

    This synchronises with a GPU.
    """
    chunk_tokens = max(1, BATCH // n_channels)
    lines, tokens = is_wanted.nonzero(as_tuple=True)
    chunks = zip(lines.split(chunk_tokens), tokens.split(chunk_tokens), strict=True)
    return [chunk for chunk in chunks if len(chunk[0])]


def zero_moments(
    boundaries: Sequence[Boundary], n_channels: int, device: torch.device
) -> dict[Boundary, Moments]:
    """Sums over no tokens; boundaries with the same start share the sums that need only X."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    input_sums: dict[float, tuple[torch.Tensor, torch.Tensor]] = {}
    for start, _ in boundaries:
        if start not in input_sums:
            input_sums[start] = (zeros(n_channels, n_channels), zeros(n_channels))

    moments: dict[Boundary, Moments] = {}
    for start, end in boundaries:
        xx, x = input_sums[start]
        moments[start, end] = Moments(
            xx=xx, xd=zeros(n_channels, n_channels), x=x, d=zeros(n_channels), dd=zeros()
        )
    return moments


def add_to_sums(
    sums: Mapping[Boundary, Moments],
    streams: Mapping[float, torch.Tensor],
    inputs: Mapping[float, torch.Tensor],
    is_wanted: torch.Tensor,
    weight: float,
) -> None:
    """Add tokens of a batch to the sums of each boundary.

    streams: By boundary, (lines, T, C).
    inputs: X by boundary start, (lines, T, C); empty where X is the stream.
    is_wanted: The tokens to add, (lines, T), each `weight` times.
    """
    n_channels = next(iter(streams.values())).shape[-1]
    chunks = _split_tokens(is_wanted, n_channels)
    # Memory must run out before anything is added, so reserve it for h, Y, another X and two
    # copies. The amount does not depend on which tokens are wanted, so it cannot run out in the
    # second split only.
    n_tokens = min(is_wanted.numel(), max(1, BATCH // n_channels))
    reserve_sums(n_tokens, n_channels, count=5 if inputs else 4, device=is_wanted.device)

    summed_starts: set[float] = set()
    for (start, end), moments in sums.items():
        for lines, tokens in chunks:
            h = streams[start][lines, tokens].double()
            y = streams[end][lines, tokens].double()
            x = h
            if inputs:
                x = inputs[start][lines, tokens].double()
                moments.add_outputs(y, weight)
            d = y.sub_(h)
            if start not in summed_starts:
                # Shared by all boundaries with this start, so added once per batch.
                moments.add_inputs(x, weight)
            moments.add_differences(x, d, weight)
        summed_starts.add(start)

"""LinearPatch: one scale per channel where a run was removed, on a Hadamard rotation of the stream.

    d_c = mean over samples of  mean_t |(h_end Q)_c| / mean_t |(h_start Q)_c|
    P = Q diag(d) Qᵀ,    then h ← h P at the boundary

of the unpruned model's streams h (tokens, C): arXiv 2505.24680. The scale is measured after the
rotation Q (C, C), which is orthonormal and symmetric. With `form: diag`, Q = I.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from lamina.options.entry import option
from lamina.options.repairs import Repair

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.moments import Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch
    from lamina.repairs.protocol import Fit, Tensors


class LinearPatch(Repair):
    """One scale per channel of the stream at a removed run of layers (arXiv 2505.24680)."""

    method: Literal["linearpatch"] = "linearpatch"
    form: Literal["diag", "rotated"] = option(
        "`rotated` scales the channels after a Hadamard rotation, as in the paper; `diag` scales "
        "them without it.",
        "rotated",
    )


@dataclass(frozen=True)
class ChannelSums:
    """Sums over one split of the samples, with X = h_start Q and Y = h_end Q; tensors are (C,)."""

    ratios: torch.Tensor
    """Σ of mean_t |Y| / mean_t |X| over samples, each with the weight of its source."""
    xx: torch.Tensor
    """Σ of X² over tokens, each with the weight of its source."""
    xy: torch.Tensor
    yy: torch.Tensor
    samples: float = 0.0
    """Total weight of the samples."""
    tokens: int = 0

    def plus(self, other: Self) -> Self:
        """Sums over the samples of both."""
        return type(self)(
            ratios=self.ratios + other.ratios,
            xx=self.xx + other.xx,
            xy=self.xy + other.xy,
            yy=self.yy + other.yy,
            samples=self.samples + other.samples,
            tokens=self.tokens + other.tokens,
        )

    def mean_ratios(self) -> torch.Tensor:
        """The scale d of every channel, (C,)."""
        return self.ratios / self.samples

    def relative_error(self, scale: torch.Tensor | float) -> float:
        """‖Y - X diag(scale)‖ / ‖Y‖; a rotation changes neither norm."""
        squared_error = (self.yy - 2 * scale * self.xy + scale**2 * self.xx).sum()
        squared_norm = self.yy.sum()
        if not squared_norm > 0:
            return 0.0
        return float((squared_error.clamp_min(0) / squared_norm).sqrt())


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: LinearPatch,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[ChannelSums]]]:
    """Sums per channel of the unpruned stream, of fit and held-out samples, from one pass."""
    from lamina.engine.moments import Statistics
    from lamina.engine.sources import count_samples, run_sources
    from lamina.models.structure import text_config

    channels = int(text_config(model).hidden_size)
    channel_collector = _ChannelCollector(sorted(set(boundaries)), channels, options, model.device)
    positions = [position for boundary in channel_collector.fit_sums for position in boundary]
    run_sources(model, sources, positions, channel_collector.add_batch, seed)
    n_samples = count_samples(sources)
    for boundary, fit_sums in channel_collector.fit_sums.items():
        yield boundary, Statistics(fit_sums, channel_collector.heldout_sums[boundary], n_samples)


class _ChannelCollector:
    """Adds up the sums of all boundaries over the batches of a pass."""

    def __init__(
        self,
        boundaries: Sequence[Boundary],
        channels: int,
        options: LinearPatch,
        device: torch.device,
    ) -> None:
        self.rotation_block = _rotation_block(channels, options).to(device)
        self.fit_sums = {boundary: _zero_sums(channels, device) for boundary in boundaries}
        self.heldout_sums = {boundary: _zero_sums(channels, device) for boundary in boundaries}

    def add_batch(
        self,
        batch: taps.Batch,
        streams: Mapping[float, torch.Tensor],
        is_heldout: torch.Tensor,
        weight: float,
    ) -> None:
        """Add a batch; a `lamina.engine.sources.Consumer`."""
        # All new sums are allocated before one of them is kept, so that the batch may be halved if
        # memory runs out.
        new_fit_sums: dict[Boundary, ChannelSums] = {}
        new_heldout_sums: dict[Boundary, ChannelSums] = {}
        for boundary, fit_sums in self.fit_sums.items():
            start, end = boundary
            x = self._rotate_real_tokens(streams[start], batch)
            y = self._rotate_real_tokens(streams[end], batch)
            fit_batch = _sum_channels(x, y, batch, ~is_heldout, weight)
            new_fit_sums[boundary] = fit_sums.plus(fit_batch)
            heldout_batch = _sum_channels(x, y, batch, is_heldout, weight)
            new_heldout_sums[boundary] = self.heldout_sums[boundary].plus(heldout_batch)
        self.fit_sums.update(new_fit_sums)
        self.heldout_sums.update(new_heldout_sums)

    def _rotate_real_tokens(self, stream: torch.Tensor, batch: taps.Batch) -> torch.Tensor:
        """h Q in float64, zero where tokens are padding."""
        return rotate(stream.double(), self.rotation_block) * batch.real[..., None]


def fit(statistics: Statistics[ChannelSums], options: LinearPatch) -> Fit:
    """Fit one boundary: the mean ratio of every channel.

    There is nothing to choose, so the held-out samples only measure errors.
    """
    from lamina.repairs.protocol import Fit

    validated_scale = statistics.fit.mean_ratios()
    final_scale = statistics.whole().mean_ratios()
    return Fit(
        tensors={"operator": _operator(final_scale, options)},
        validated={"operator": _operator(validated_scale, options)},
        facts={
            "fit_error_before": statistics.fit.relative_error(1.0),
            "fit_error": statistics.fit.relative_error(validated_scale),
            "heldout_error_before": statistics.heldout.relative_error(1.0),
            "heldout_error": statistics.heldout.relative_error(validated_scale),
            "parameters": len(validated_scale) ** 2,
            **statistics.counts(),
        },
    )


def as_patch(tensors: Tensors) -> Patch:
    """h + h (P - I)."""
    from lamina.models.boundary import Patch

    return Patch(tensors["operator"])


def hadamard(channels: int) -> torch.Tensor:
    """Sylvester's matrix of the largest power of two that divides C, orthonormal, in float64.

    Its copies along the diagonal are the rotation Q (C, C).
    """
    import torch

    matrix = torch.ones(1, 1, dtype=torch.float64)
    while channels % (2 * len(matrix)) == 0:
        upper = torch.cat([matrix, matrix], 1)
        lower = torch.cat([matrix, -matrix], 1)
        matrix = torch.cat([upper, lower])
    return matrix / len(matrix) ** 0.5


def rotate(stream: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """h Q of a stream (…, C), for Q with copies of `block` along its diagonal."""
    return (stream.unflatten(-1, (-1, len(block))) @ block).flatten(-2)


def _rotation_block(channels: int, options: LinearPatch) -> torch.Tensor:
    """The block of the rotation Q; 1 × 1 if there is none."""
    return hadamard(channels if options.form == "rotated" else 1)


def _zero_sums(channels: int, device: torch.device) -> ChannelSums:
    import torch

    ratios, xx, xy, yy = torch.zeros(4, channels, dtype=torch.float64, device=device)
    return ChannelSums(ratios, xx, xy, yy)


def _sum_channels(
    x: torch.Tensor,
    y: torch.Tensor,
    batch: taps.Batch,
    is_counted: torch.Tensor,
    weight: float,
) -> ChannelSums:
    """Sums over those samples of a batch that are counted (lines,), from x and y (lines, T, C).

    x and y are zero where padded. The number of tokens cancels in the ratio of two means.
    """
    import torch

    x = x[is_counted]
    y = y[is_counted]
    absolute_x = x.abs().sum(1)
    absolute_y = y.abs().sum(1)
    # A channel that is always zero can have any scale.
    ratios = torch.where(absolute_x > 0, absolute_y / absolute_x, 1.0).sum(0)
    return ChannelSums(
        ratios=weight * ratios,
        xx=weight * x.square().sum((0, 1)),
        xy=weight * (x * y).sum((0, 1)),
        yy=weight * y.square().sum((0, 1)),
        samples=weight * len(x),
        tokens=int(batch.real[is_counted].sum()),
    )


def _operator(scale: torch.Tensor, options: LinearPatch) -> torch.Tensor:
    """P - I = Q diag(d - 1) Qᵀ in float32, (C, C)."""
    import torch

    channels = len(scale)
    block = _rotation_block(channels, options).to(scale.device)
    rotation = rotate(torch.eye(channels, dtype=scale.dtype, device=scale.device), block)
    return ((rotation * (scale - 1)) @ rotation.T).float()

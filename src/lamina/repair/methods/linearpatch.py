"""LinearPatch: one scale per channel in the place of a removed run, on the stream itself or on a Hadamard rotation.

`d_c` is the mean over samples of mean_t |(h_end Q)_c| / mean_t |(h_start Q)_c|, and `h <- h Q diag(d) Qᵀ` at the
boundary (arXiv 2505.24680). The scale is measured after the rotation. Without a rotation, Q = I.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lamina.config.entry import option
from lamina.config.repairs import Repair

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lamina.engine import taps
    from lamina.engine.moments import Statistics
    from lamina.engine.sources import Source
    from lamina.models.boundary import Boundary, Patch
    from lamina.repair.protocol import Fit, Tensors


class LinearPatch(Repair):
    """One scale per channel of the residual stream where a run of layers went, after arXiv 2505.24680."""

    method: Literal["linearpatch"] = "linearpatch"
    form: Literal["diag", "rotated"] = option(
        "`rotated` scales the channels after a Hadamard rotation, as the paper does, `diag` as they are.",
        "rotated",
    )


@dataclass
class Channels:
    """Sums of one split in the rotated basis, (C,) each; X = h_start Q, Y = h_end Q."""

    ratios: (
        torch.Tensor
    )  # over samples, of mean_t |Y| / mean_t |X|, where a sample has the weight of its source
    xx: torch.Tensor  # of X², XY and Y² over tokens, weighted
    xy: torch.Tensor
    yy: torch.Tensor
    samples: float = 0.0  # sum of the weights of the samples
    tokens: int = 0

    def plus(self, other: Channels) -> Channels:
        """Sums over both splits."""
        return Channels(*(getattr(self, name) + getattr(other, name) for name in vars(self)))

    def error(self, scale: torch.Tensor | float) -> float:
        """‖Y - X diag(scale)‖ / ‖Y‖; a rotation changes neither norm."""
        square = (self.yy - 2 * scale * self.xy + scale**2 * self.xx).sum()
        return float((square.clamp_min(0) / self.yy.sum()).sqrt()) if self.yy.sum() > 0 else 0.0


def collect(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[Boundary],
    options: LinearPatch,
    seed: int,
) -> Iterator[tuple[Boundary, Statistics[Channels]]]:
    """Sums of the unpruned stream per channel, separate for fit and held-out samples, all boundaries in one pass."""
    from lamina.engine import sources as over
    from lamina.engine.moments import Statistics
    from lamina.models.structure import text_config

    channels = int(text_config(model).hidden_size)
    block = hadamard(channels if options.form == "rotated" else 1).to(model.device)
    totals = {
        boundary: [_empty(channels, model.device) for _ in range(2)]
        for boundary in sorted(set(boundaries))
    }

    def add(
        batch: taps.Batch, streams: Mapping[float, torch.Tensor], held: torch.Tensor, weight: float
    ) -> None:
        # All sums of a batch are there before any is added, so that it may be halved.
        added = []
        for boundary, splits in totals.items():
            x, y = (
                rotate(streams[place].double(), block) * batch.real[..., None] for place in boundary
            )
            for split, lines in zip(splits, (~held, held), strict=True):
                added.append(
                    (split, _sums(x[lines], y[lines], weight, int(batch.real[lines].sum())))
                )
        for split, more in added:
            for name, value in vars(split.plus(more)).items():
                setattr(split, name, value)

    over.run(model, sources, [place for boundary in totals for place in boundary], add, seed)
    for boundary, (seen, unseen) in totals.items():
        yield boundary, Statistics(seen, unseen, over.counted(sources))


def fit(statistics: Statistics[Channels], options: LinearPatch) -> Fit:
    """The mean ratio of every channel. There is nothing to choose, so the held-out samples only measure errors."""
    from lamina.repair.protocol import Fit

    seen, unseen = statistics.fit, statistics.heldout
    scale, both = seen.ratios / seen.samples, seen.plus(unseen)
    return Fit(
        tensors=_tensors(both.ratios / both.samples, options),
        validated=_tensors(scale, options),
        facts={
            "fit_error_before": seen.error(1.0),
            "fit_error": seen.error(scale),
            "heldout_error_before": unseen.error(1.0),
            "heldout_error": unseen.error(scale),
            "parameters": len(scale) ** 2,
            **statistics.counts(),
        },
    )


def as_patch(tensors: Tensors) -> Patch:
    """h + h (Q diag(d) Qᵀ - I)."""
    from lamina.models.boundary import Patch

    return Patch(tensors["operator"])


def hadamard(channels: int) -> torch.Tensor:
    """Sylvester's orthonormal, symmetric matrix of the largest power of two that divides C, in float64.

    Its copies along the diagonal are the rotation Q (C, C).
    """
    import torch

    matrix = torch.ones(1, 1, dtype=torch.float64)
    while channels % (2 * len(matrix)) == 0:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / len(matrix) ** 0.5


def rotate(stream: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """h Q of a stream (..., C), for the block of `hadamard`."""
    return (stream.unflatten(-1, (-1, len(block))) @ block).flatten(-2)


def _empty(channels: int, on: torch.device) -> Channels:
    import torch

    return Channels(*torch.zeros(4, channels, dtype=torch.float64, device=on))


def _sums(x: torch.Tensor, y: torch.Tensor, weight: float, tokens: int) -> Channels:
    """Sums of samples x, y (lines, T, C), zero where padded. The number of tokens cancels in the ratio of means."""
    import torch

    before, after = x.abs().sum(1), y.abs().sum(1)
    # A channel that is always zero can have any scale.
    ratios = torch.where(before > 0, after / before, 1.0).sum(0)
    xx, xy, yy = (weight * products.sum((0, 1)) for products in (x.square(), x * y, y.square()))
    return Channels(weight * ratios, xx, xy, yy, weight * len(x), tokens)


def _tensors(scale: torch.Tensor, options: LinearPatch) -> dict[str, torch.Tensor]:
    import torch

    block = hadamard(len(scale) if options.form == "rotated" else 1).to(scale.device)
    rotation = rotate(torch.eye(len(scale), dtype=scale.dtype, device=scale.device), block)
    return {"operator": ((rotation * (scale - 1)) @ rotation.T).float()}

"""Taps over several calibrations; a seeded share of the documents of each is held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.data.splitting import held_out
from lamina.engine import taps
from lamina.engine.batches import TOKENS


@dataclass(frozen=True)
class Source:
    """Token sequences of one calibration; each token counts `weight` times.

    With weight 0 nothing is fitted on them, but they take part in the draw of held-out documents.
    """

    sequences: Sequence[Sequence[int]]
    weight: float = 1.0


HELDOUT_SHARE = 0.2

Consumer = Callable[[taps.Batch, Mapping[float, torch.Tensor], torch.Tensor, float], None]
"""As `taps.Consumer`, with a flag for each line that is held out (lines,), and the weight of their source."""


def split(sources: Sequence[Source], seed: int) -> list[list[bool]]:
    """Whether each sample of each source is held out, drawn by document over all sources together.

    Raises LaminaError if a source has fewer than two documents.
    """
    sequences = [source.sequences for source in sources]
    return held_out(
        sequences, HELDOUT_SHARE, seed, "a patch is fitted on some documents and checked on others"
    )


def counted(sources: Sequence[Source]) -> int:
    """Samples that a fit runs over."""
    return sum(len(source.sequences) for source in sources if source.weight)


def run(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[float],
    consumer: Consumer,
    seed: int,
    tokens: int = TOKENS,
    outputs: Sequence[nn.Module] = (),
    run: taps.Run = taps.run,
) -> None:
    """`taps.run`, or the given `run`, over the samples of each source in turn, but for those of weight 0."""
    for source, flags in zip(sources, split(sources, seed), strict=True):
        if source.weight:
            held = torch.tensor(flags, device=model.device)
            run(
                model,
                source.sequences,
                boundaries,
                partial(_consume, consumer, held, source.weight),
                tokens,
                outputs,
            )


def _consume(
    consumer: Consumer,
    held: torch.Tensor,
    weight: float,
    batch: taps.Batch,
    streams: Mapping[float, torch.Tensor],
) -> None:
    consumer(batch, streams, held[batch.samples], weight)

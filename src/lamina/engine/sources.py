"""Runs a model over several calibrations, holding out a seeded share of each one's documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.data.splitting import held_out
from lamina.engine import taps
from lamina.engine.batches import TOKENS

HELDOUT_SHARE = 0.2


@dataclass(frozen=True)
class Source:
    """Token sequences of one calibration; each token counts `weight` times.

    With weight 0 nothing is fitted on them, but they take part in the draw of held-out documents.
    """

    sequences: Sequence[Sequence[int]]
    weight: float = 1.0


Consumer = Callable[[taps.Batch, Mapping[float, torch.Tensor], torch.Tensor, float], None]
"""Like `taps.Consumer`. It also takes whether each line is held out, (lines,), and the source's
weight."""


def draw_held_out(sources: Sequence[Source], seed: int) -> list[list[bool]]:
    """Whether each sample of each source is held out, drawn by document over all sources together.

    Raises LaminaError if a source has fewer than two documents.
    """
    sequences = [source.sequences for source in sources]
    return held_out(
        sequences, HELDOUT_SHARE, seed, "a patch is fitted on some documents and checked on others"
    )


def count_samples(sources: Sequence[Source]) -> int:
    """How many samples a fit runs over."""
    return sum(len(source.sequences) for source in sources if source.weight)


def run_sources(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[float],
    consumer: Consumer,
    seed: int,
    token_budget: int = TOKENS,
    outputs: Sequence[nn.Module] = (),
    run: taps.Run = taps.run_sequences,
) -> None:
    """Run a model over the samples of each source in turn, except for sources of weight 0.

    run: Used instead of `taps.run_sequences`.
    """
    for source, heldout_flags in zip(sources, draw_held_out(sources, seed), strict=True):
        if not source.weight:
            continue
        is_heldout = torch.tensor(heldout_flags, device=model.device)
        add_batch = partial(_consume_batch, consumer, is_heldout, source.weight)
        run(model, source.sequences, boundaries, add_batch, token_budget, outputs)


def _consume_batch(
    consumer: Consumer,
    is_heldout: torch.Tensor,
    weight: float,
    batch: taps.Batch,
    streams: Mapping[float, torch.Tensor],
) -> None:
    """Pass a batch on with the held-out flags of its lines; `is_heldout` covers all samples."""
    consumer(batch, streams, is_heldout[batch.samples], weight)

"""Taps over several calibrations, of each of which a seeded share of the samples is held out."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.streams import taps
from lamina.streams.batches import TOKENS


@dataclass(frozen=True)
class Source:
    """Token sequences of one calibration, each of whose tokens counts `weight` times."""

    sequences: Sequence[Sequence[int]]
    weight: float = 1.0


HELDOUT_SHARE = 0.2

Consumer = Callable[[taps.Batch, Mapping[int, torch.Tensor], torch.Tensor, float], None]
"""As `taps.Consumer`, and told which lines are held out (lines,), and the weight of their source."""


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


def run(
    model: PreTrainedModel,
    sources: Sequence[Source],
    boundaries: Sequence[int],
    consumer: Consumer,
    seed: int,
    tokens: int = TOKENS,
    outputs: Sequence[nn.Module] = (),
    run: taps.Run = taps.run,
) -> None:
    """`taps.run`, or what stands for it, over the samples of all sources, one source after the other."""
    for source in sources:
        held = torch.tensor(split(len(source.sequences), seed), device=model.device)
        run(model, source.sequences, boundaries, partial(_told, consumer, held, source.weight), tokens, outputs)


def _told(
    consumer: Consumer, held: torch.Tensor, weight: float, batch: taps.Batch, streams: Mapping[int, torch.Tensor]
) -> None:
    consumer(batch, streams, held[batch.samples], weight)

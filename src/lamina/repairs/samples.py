"""The weighted samples of several calibrations, on which repairs are trained and checked."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lamina.engine.sources import Source, draw_held_out


class WeightedSequence(NamedTuple):
    """Token ids of a sample, and the weight of each of its tokens."""

    token_ids: Sequence[int]
    weight: float


class SplitSamples(NamedTuple):
    """The samples of one source."""

    fit: list[WeightedSequence]
    heldout: list[WeightedSequence]


def split_samples(sources: Sequence[Source], seed: int) -> Iterator[SplitSamples]:
    """Split each source into the samples of the fit and the held-out ones.

    Sources of weight 0 only take part in the draw of held-out documents.
    """
    for source, is_heldout in zip(sources, draw_held_out(sources, seed), strict=True):
        if not source.weight:
            continue
        split = SplitSamples([], [])
        for token_ids, is_heldout_sample in zip(source.sequences, is_heldout, strict=True):
            sample_group = split.heldout if is_heldout_sample else split.fit
            sample_group.append(WeightedSequence(token_ids, source.weight))
        yield split

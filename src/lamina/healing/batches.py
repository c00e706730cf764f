"""Decides which documents a healing holds out, and which samples make each optimiser step.

The random numbers come from Python's generator, seeded by the options, so that an interrupted
training continues with the same batches.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from lamina.data.calibrations import Sample
from lamina.data.splitting import held_out
from lamina.options.healings import Healing

VALIDATION_SHARE = 0.15

Item = TypeVar("Item")


class TrainingSource(NamedTuple):
    """Samples of one calibration; each of their scored tokens counts `weight` times."""

    samples: Sequence[Sample]
    weight: float = 1.0


class OptimiserStep(NamedTuple):
    """The batch of one optimiser step."""

    epoch: int  # from 1
    sample_groups: list[list[Sample]]  # one group per source, each padded on its own
    ends_epoch: bool


def count_tokens(sample: Sample) -> int:
    """Tokens of the context and of the gold continuation."""
    row = sample.rows[sample.gold]
    return len(row.context) + len(row.continuation)


def split_sources(
    sources: Sequence[TrainingSource], seed: int
) -> tuple[list[TrainingSource], list[TrainingSource]]:
    """The samples for training and those for validation, drawn by document over all sources.

    Raises LaminaError if a source has fewer than four documents.
    """
    purpose = "healing trains on some documents and picks the epoch on others"
    token_sequences = []
    for source in sources:
        token_sequences.append([sample.sequence() for sample in source.samples])
    heldout_flags = held_out(token_sequences, VALIDATION_SHARE, seed, purpose, least=4)

    training_sources = []
    validation_sources = []
    for source, flags in zip(sources, heldout_flags, strict=True):
        flagged_samples = list(zip(source.samples, flags, strict=True))
        training_samples = [sample for sample, is_heldout in flagged_samples if not is_heldout]
        validation_samples = [sample for sample, is_heldout in flagged_samples if is_heldout]
        training_sources.append(TrainingSource(training_samples, source.weight))
        validation_sources.append(TrainingSource(validation_samples, source.weight))
    return training_sources, validation_sources


def plan_steps(sources: Sequence[TrainingSource], options: Healing) -> Iterator[OptimiserStep]:
    """All optimiser steps of a training, the same ones for the same seed.

    `max_steps` limits the total steps of all epochs.
    """
    generator = random.Random(options.seed)
    n_planned = 0
    for epoch in range(1, options.epochs + 1):
        batches = shuffle_batches(sources[0].samples, options.batch, generator)
        if len(sources) > 1:
            # The shuffle above is then useless, but removing it would change the mixtures of
            # earlier trainings.
            batches = draw_mixed_batches(sources, options.batch, generator)
        if options.max_steps is not None:
            batches = batches[: options.max_steps - n_planned]
        for batch_number, sample_groups in enumerate(batches, start=1):
            yield OptimiserStep(epoch, sample_groups, ends_epoch=batch_number == len(batches))
        n_planned += len(batches)


def shuffle_batches(
    samples: Sequence[Sample], batch_size: int, generator: random.Random
) -> list[list[list[Sample]]]:
    """Batches of samples of similar length (little padding) in random order (no curriculum).

    Each has one group.
    """
    shuffled_samples = list(samples)
    generator.shuffle(shuffled_samples)
    shuffled_samples.sort(key=count_tokens)
    batches = [[list(batch)] for batch in _chunk(shuffled_samples, batch_size)]
    generator.shuffle(batches)
    return batches


def draw_mixed_batches(
    sources: Sequence[TrainingSource], batch_size: int, generator: random.Random
) -> list[list[list[Sample]]]:
    """Batches drawn from several sources at once, in which every scored token counts the same.

    The source with the greatest weight contributes all of its samples once. Every other source
    contributes a random share of its samples: its weight divided by the greatest weight.
    """
    greatest_weight = max(source.weight for source in sources)
    drawn_samples: list[tuple[int, Sample]] = []
    for source_index, source in enumerate(sources):
        n_drawn = max(1, round(len(source.samples) * source.weight / greatest_weight))
        for sample in generator.sample(source.samples, n_drawn):
            drawn_samples.append((source_index, sample))
    generator.shuffle(drawn_samples)
    return [_group_by_source(batch) for batch in _chunk(drawn_samples, batch_size)]


def _group_by_source(batch: Sequence[tuple[int, Sample]]) -> list[list[Sample]]:
    """The samples of a batch in groups, one for each source, in the order of sources."""
    groups: dict[int, list[Sample]] = {}
    for source_index, sample in batch:
        groups.setdefault(source_index, []).append(sample)
    return [groups[source_index] for source_index in sorted(groups)]


def _chunk(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Consecutive pieces of `size` items; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]

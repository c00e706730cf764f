"""Batches by length against plain counts, and taps against hooks on a pass over each text alone."""

import random
from collections.abc import Mapping
from itertools import chain, pairwise

import pytest
import torch

from lamina.engine import taps
from lamina.engine.batches import by_length
from lamina.models.structure import layers_of
from tests.given import tiny
from tests.given.slow import slow_except


def texts_of_many_lengths(count: int) -> list[tuple[int, ...]]:
    texts: list[tuple[int, ...]] = []
    for index in range(count):
        length = 4 + 5 * index % 17
        texts.append(tuple(tiny.tokens(1, length, seed=index)[0].tolist()))
    return texts


def test_batches_are_sorted_by_length_complete_and_as_large_as_the_budget_allows() -> None:
    generator = random.Random(0)
    for _ in range(200):
        n_sequences = generator.randint(0, 30)
        lengths = [generator.randint(1, 60) for _ in range(n_sequences)]
        budget = generator.randint(1, 300)

        batches = by_length(lengths, budget)

        indices = list(chain.from_iterable(batches))
        longest_first = sorted(range(n_sequences), key=lambda index: (-lengths[index], index))
        assert indices == longest_first
        for batch in batches:
            assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget
        for batch, next_batch in pairwise(batches):
            assert next_batch
            assert (len(batch) + 1) * lengths[batch[0]] > budget


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt", "gemma2"])
def test_a_consumer_gets_the_streams_of_each_sequence_once(family: str) -> None:
    model = tiny.model(family)
    sequences = texts_of_many_lengths(12)
    boundaries = (0, 3, 5)
    streams_of_sample: dict[int, dict[int, torch.Tensor]] = {}
    n_positions: list[int] = []

    def keep_streams(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        assert sorted(streams) == list(boundaries)
        n_positions.append(batch.real.numel())
        for line, sample_index in enumerate(batch.samples):
            assert sample_index not in streams_of_sample
            is_real = batch.real[line]
            streams_of_sample[sample_index] = {
                boundary: stream[line][is_real] for boundary, stream in streams.items()
            }

    taps.run_sequences(model, sequences, boundaries, keep_streams, token_budget=60)

    assert sorted(streams_of_sample) == list(range(12))
    assert len(n_positions) > 1
    assert max(n_positions) <= taps.count_positions(60, 3) < 60
    for sample_index, sequence in enumerate(sequences):
        expected = tiny.stream(model, torch.tensor([sequence]), layers_of(model))
        for boundary, stream in streams_of_sample[sample_index].items():
            torch.testing.assert_close(stream, expected[boundary][0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", slow_except(tiny.USUAL_FAMILIES, tiny.FAMILIES))
def test_no_layer_after_the_last_boundary_runs_and_the_model_is_restored(family: str) -> None:
    """Also if the consumer fails."""
    model = tiny.model(family)
    (sequence,) = texts_of_many_lengths(1)
    layers = list(layers_of(model))
    config = model.config.to_dict()
    expected_streams = tiny.stream(model, torch.tensor([sequence]), layers_of(model))
    layers_run: list[torch.nn.Module] = []
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: layers_run.append(layer))

    def fail_after_a_look(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        torch.testing.assert_close(streams[2], expected_streams[2], atol=1e-5, rtol=1e-5)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        taps.run_sequences(model, [sequence], [2], fail_after_a_look, token_budget=1000)

    assert layers_run == layers[:2]
    assert list(layers_of(model)) == layers
    assert model.config.to_dict() == config

"""Batches and taps: every sequence once, within the budget, with the streams of a pass over it alone."""

import random
from collections.abc import Mapping

import pytest
import torch

from lamina.engine import taps
from lamina.engine.batches import by_length
from lamina.models.structure import layers_of
from tests.given import tiny


def texts(count: int = 40) -> list[tuple[int, ...]]:
    return [
        tuple(tiny.tokens(1, 4 + 5 * number % 17, seed=number)[0].tolist())
        for number in range(count)
    ]


def test_groups_are_similar_complete_and_within_the_budget() -> None:
    draw = random.Random(0)
    for _ in range(200):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(0, 30))]
        budget = draw.randint(1, 300)
        groups = by_length(lengths, budget)
        flat = [index for group in groups for index in group]
        assert sorted(flat) == list(range(len(lengths)))
        assert flat == sorted(flat, key=lambda index: (-lengths[index], index))
        assert all(len(group) == 1 or len(group) * lengths[group[0]] <= budget for group in groups)
        # No group could have taken the first of the next.
        for group, following in zip(groups, groups[1:], strict=False):
            assert following and (len(group) + 1) * lengths[group[0]] > budget


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt", "gemma2"])
def test_a_consumer_gets_the_streams_of_each_sequence_once(family: str) -> None:
    model, sequences, wanted = tiny.model(family), texts(12), (0, 3, 5)
    found: dict[int, list[torch.Tensor]] = {}
    widths = []

    def keep(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        assert sorted(streams) == list(wanted)
        widths.append(batch.real.numel())
        for line, sample in enumerate(batch.samples):
            assert sample not in found
            found[sample] = [streams[place][line][batch.real[line]] for place in wanted]

    taps.run_sequences(model, sequences, wanted, keep, token_budget=60)
    assert (
        sorted(found) == list(range(12))
        and len(widths) > 1
        and max(widths) <= taps.count_positions(60, 3) < 60
    )
    for sample, ids in enumerate(sequences):
        plain = tiny.stream(model, torch.tensor([ids]), layers_of(model))
        for place, stream in zip(wanted, found[sample], strict=True):
            torch.testing.assert_close(stream, plain[place][0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_no_layer_behind_the_last_boundary_runs_and_the_model_stays_whole(family: str) -> None:
    model, (ids, *_) = tiny.model(family), texts(1)
    plain = tiny.stream(model, torch.tensor([ids]), layers_of(model))
    layers, config, ran = list(layers_of(model)), model.config.to_dict(), []
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))

    def look(batch: taps.Batch, streams: Mapping[int, torch.Tensor]) -> None:
        torch.testing.assert_close(streams[2], plain[2], atol=1e-5, rtol=1e-5)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        taps.run_sequences(model, [ids], [2], look, token_budget=1000)
    assert ran == [0, 1] and list(layers_of(model)) == layers and model.config.to_dict() == config

"""Batches keep every sequence once, within the budget, and say what is padding."""

import random

import torch

from lamina.streams.batches import by_length, padded


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


def test_padding_stands_on_the_right_and_is_marked() -> None:
    ids, mask = padded([(5, 6, 7), (8,), (9, 0)], "cpu")
    assert ids.dtype == torch.long and ids.tolist() == [[5, 6, 7], [8, 0, 0], [9, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]

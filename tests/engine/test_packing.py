"""Lines that share a batch."""

import pytest

from lamina.engine import packing


@pytest.mark.parametrize("budget", [512, 4096, 16384, 65536])
def test_padding_stays_small_however_large_the_budget(budget: int) -> None:
    """A batch costs its longest line times its lines. The lines have 20 to 119 tokens."""
    lines = [packing.Line(index, (0,) * (20 + index), (), (), (), ()) for index in range(100)]

    batches = list(packing.group_lines(lines, budget, head_cost=0.0))

    n_positions = sum(len(batch[0].tokens) * len(batch) for batch in batches)
    assert sorted(line.sample_index for batch in batches for line in batch) == list(range(100))
    assert n_positions < 1.1 * sum(len(line.tokens) for line in lines)

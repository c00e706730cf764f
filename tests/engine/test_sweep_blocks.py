"""Jobs that share a sweep get equal work: against the layers that each removal runs, counted."""

from itertools import chain

import pytest

from lamina.engine.sweep import share_by_cost
from lamina.models.units import all_units


def count_layers(units: list[str], n_layers: int) -> int:
    """Layers that a block runs for a token: all of the model, and those after each removal."""
    n_layers_after = [n_layers - 1 - int(unit.split(".")[0]) for unit in units]
    return n_layers + sum(n_layers_after)


@pytest.mark.parametrize("kind", ["layer", "attention"])
@pytest.mark.parametrize("n_layers", [12, 24, 32, 80])
@pytest.mark.parametrize("n_blocks", [2, 4])
def test_the_largest_block_is_at_most_15_percent_above_the_mean(
    n_layers: int, n_blocks: int, kind: str
) -> None:
    units = all_units(n_layers, kind)

    blocks = [share_by_cost(units, n_layers, block, n_blocks) for block in range(n_blocks)]

    units_of_blocks = list(chain.from_iterable(blocks))
    costs = [count_layers(block_units, n_layers) for block_units in blocks]
    mean_cost = sum(costs) / n_blocks
    assert sorted(units_of_blocks) == sorted(units)
    assert max(costs) / mean_cost <= 1.15


def test_a_block_too_many_has_nothing_to_do() -> None:
    blocks = [share_by_cost(["0", "1"], 12, block, 3) for block in range(3)]

    assert [len(block_units) for block_units in blocks] == [1, 1, 0]

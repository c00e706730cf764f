"""Jobs that share a sweep get equal work, and together they do all of it once."""

import pytest

from lamina.engine.sweep import share_by_cost
from lamina.models.units import all_units


def layer_tokens(units: list[str], n_layers: int) -> int:
    """Layers that a block runs per token of the calibration: the model itself, and of each removal what follows it."""
    return n_layers + sum(n_layers - 1 - int(unit.split(".")[0]) for unit in units)


@pytest.mark.parametrize("kind", ["layer", "attention"])
@pytest.mark.parametrize("n_layers", [12, 24, 32, 80])
@pytest.mark.parametrize("blocks", [2, 4])
def test_the_largest_block_is_at_most_15_percent_above_the_mean(
    n_layers: int, blocks: int, kind: str
) -> None:
    units = all_units(n_layers, kind)
    shares = [share_by_cost(units, n_layers, block, blocks) for block in range(blocks)]
    assert sorted(unit for share in shares for unit in share) == sorted(units)
    costs = [layer_tokens(share, n_layers) for share in shares]
    assert max(costs) / (sum(costs) / blocks) <= 1.15


def test_a_block_too_many_has_nothing_to_do() -> None:
    assert [len(share_by_cost(["0", "1"], 12, block, 3)) for block in range(3)] == [1, 1, 0]

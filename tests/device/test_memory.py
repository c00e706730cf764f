"""A pass that a pretended device has no memory for is halved, measures nothing twice, and gives the same numbers."""

import gc

import pytest

from lamina.models.load import load_model
from lamina.sweep import engine
from tests.device.compare import differences
from tests.device.conftest import Made
from tests.device.pretended import Machine, pretended
from tests.device.stages import STAGES
from tests.device.world import UNITS, World


def needed(world: World, tokens: int) -> tuple[int, engine.Scores, int]:
    """Bytes at the widest place of a sweep, its scores, and the layer-tokens that it ran."""
    with pretended() as machine:
        scores, ran = swept(world, tokens, machine)
        return machine.cards[0].peak, scores, ran


def swept(world: World, tokens: int, machine: Machine) -> tuple[engine.Scores, int]:
    model = load_model(world.manifest())
    with engine.opened(model, world.samples, tokens) as session:
        session.sweep(UNITS)
    return session.scores, session.layer_tokens


@pytest.mark.parametrize("share", [0.7, 0.4])
def test_a_sweep_that_is_too_large_is_halved_until_it_fits(made: Made, share: float) -> None:
    world = made()
    peak, whole, ran = needed(world, 100_000)
    names = ["none", *UNITS]
    with pretended(int(share * peak)) as machine:
        halved, more = swept(world, 100_000, machine)
        assert machine.cards[0].failed and machine.cards[0].peak <= share * peak
    assert not differences(whole.rows(names), halved.rows(names))
    assert more >= ran / 2, "what was measured before a failure is not run again"
    assert len(halved.rows(names)) == len(names) * len(world.samples)


@pytest.mark.parametrize(
    "stage", ["capture_activations", "sweep_removal[layer]", "fit_patch[ghost]", "heal_variant[lora]"]
)
def test_nothing_of_a_stage_stays_on_the_device(stage: str, made: Made) -> None:
    with pretended() as machine:
        STAGES[stage](made())
        gc.collect()
        assert machine.cards[0].alive == 0

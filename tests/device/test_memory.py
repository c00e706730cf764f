"""What a pretended device has no memory for is halved, measures nothing twice, and gives the same numbers."""

import gc

import pytest
import torch

from lamina.engine import sweep
from lamina.engine.scores import Scores
from lamina.errors import LaminaError
from lamina.evaluation import efficiency
from lamina.healing import training
from lamina.models.load import load_model
from lamina.options.benchmarks import Efficiency
from tests.device.compare import differences
from tests.device.conftest import Made, OnDevices, OnHost
from tests.device.pretended import Machine, pretended
from tests.device.stages import STAGES
from tests.device.world import UNITS, World
from tests.given.slow import slow_except


def needed(world: World, tokens: int) -> tuple[int, Scores, int]:
    """Bytes at the widest place of a sweep, its scores, and the layer-tokens that it ran."""
    with pretended() as machine:
        scores, ran = swept(world, tokens, machine)
        return machine.cards[0].peak, scores, ran


def swept(world: World, tokens: int, machine: Machine) -> tuple[Scores, int]:
    model = load_model(world.manifest())
    with sweep.open_session(model, world.samples, tokens) as session:
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


# Shares of the memory that a stage would take, the lower one such that half of a batch does not fit either, or nearly.
MANY = (
    "sweep_looped",
    "fit_patch[ghost]",
    "fit_patch[linearpatch]",
    "fit_patch[replaceme]",
    "fit_patch_refit",
)
MANY += ("heal_variant[lora]", "benchmark_task", "benchmark_perplexity")
HALVED: dict[str, tuple[float, ...]] = dict.fromkeys(MANY, (0.8, 0.6))
HALVED |= {"capture_activations": (0.7, 0.4), "sweep_gradient": (0.8, 0.5), "sweep_fit": (0.9,)}
HALVED |= dict.fromkeys(("fit_patch[streamline]", "diagnose_layers[fit]"), (0.95, 0.8)) | {
    "diagnose_probe": (0.6,)
}
HALVED |= dict.fromkeys(("heal_variant[lora_both_distill]", "heal_variant[full]"), (0.8,))
HALVED |= dict.fromkeys(("benchmark_generation", "diagnose_layers[variance]"), (0.7,))
QUICK = ("fit_patch[linearpatch]", "heal_variant[lora]", "benchmark_perplexity")


@pytest.mark.parametrize("stage", slow_except(QUICK, HALVED))
def test_a_stage_is_halved(
    stage: str, on_host: OnHost, on_devices: OnDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healing follows the memory that it finds, and is to be wrong about it here."""
    monkeypatch.setattr(training, "position_budget", lambda *_: 100_000)
    _, ample = on_devices(stage, tokens=100_000)
    for share in HALVED[stage]:
        found, machine = on_devices(stage, int(share * ample.cards[0].peak), tokens=100_000)
        assert machine.cards[0].failed
        assert not differences(on_host(stage, tokens=100_000), found)


@pytest.mark.parametrize("stage", ["capture_activations", "fit_patch[ghost]", "heal_variant[lora]"])
def test_one_sample_too_large_ends_in_error(
    stage: str, on_devices: OnDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "position_budget", lambda *_: 100_000)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        on_devices(stage, 240_000)


def test_efficiency_is_of_its_batch_and_is_never_halved(made: Made) -> None:
    with pretended(2_000_000):
        model = made().model()
        with pytest.raises(
            LaminaError, match=r"benchmarks\.efficiency: 900 sequences of .*smaller batch"
        ):
            efficiency.measure_efficiency(
                model, [({}, model)], Efficiency(prompt=8, generate=3, batch=900)
            )


@pytest.mark.parametrize("stage", ["sweep_removal[layer]", "fit_patch[ghost]"])
def test_nothing_of_a_stage_stays_on_the_device(stage: str, made: Made) -> None:
    with pretended() as machine:
        STAGES[stage](made())
        gc.collect()
        assert machine.cards[0].alive == 0

"""A batch that a device has no memory for is halved: nothing is measured twice or differently."""

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
from tests.device.compare import list_differences
from tests.device.conftest import MakeWorld, RunOnCpu, RunOnDevices
from tests.device.pretended import pretend_devices
from tests.device.stages import STAGES
from tests.device.world import UNITS, World
from tests.given.slow import slow_except

ONE_BATCH = 100_000  # a token budget that all samples fit into


def sweep_removals(world: World) -> tuple[Scores, int]:
    """Scores of all removals in one batch, and the layer-tokens that were run."""
    model = load_model(world.manifest())
    with sweep.open_session(model, world.samples, ONE_BATCH) as session:
        session.sweep(UNITS)
    return session.scores, session.layer_tokens


@pytest.mark.parametrize("memory_share", [0.7, 0.4])
def test_a_sweep_that_is_too_large_is_halved_until_it_fits(
    make_world: MakeWorld, memory_share: float
) -> None:
    world = make_world()
    with pretend_devices() as ample_machine:
        whole_scores, whole_layer_tokens = sweep_removals(world)
    memory = int(memory_share * ample_machine.cards[0].peak)

    with pretend_devices(memory) as machine:
        halved_scores, halved_layer_tokens = sweep_removals(world)

    (card,) = machine.cards
    assert card.n_failed
    assert card.peak <= memory
    candidates = ["none", *UNITS]
    rows = halved_scores.rows(candidates)
    assert len(rows) == len(candidates) * len(world.samples)
    assert not list_differences(whole_scores.rows(candidates), rows)
    # What was measured before a failure is not run again.
    assert halved_layer_tokens >= whole_layer_tokens / 2


# Shares of the memory that a stage needs. With the smaller one, half of a batch hardly fits or
# does not fit either.
MEMORY_SHARES: dict[str, tuple[float, ...]] = {
    "capture_activations": (0.7, 0.4),
    "sweep_gradient": (0.8, 0.5),
    "sweep_looped": (0.8, 0.6),
    "fit_patch[ghost]": (0.8, 0.6),
    "fit_patch[linearpatch]": (0.8, 0.6),
    "fit_patch[replaceme]": (0.8, 0.6),
    "fit_patch[streamline]": (0.95, 0.8),
    "fit_patch_refit": (0.8, 0.6),
    "heal_variant[lora]": (0.8, 0.6),
    "heal_variant[lora_both_distill]": (0.8,),
    "heal_variant[full]": (0.8,),
    "benchmark_task": (0.8, 0.6),
    "benchmark_perplexity": (0.8, 0.6),
    "benchmark_generation": (0.7,),
    "diagnose_layers[variance]": (0.7,),
    "diagnose_probe": (0.6,),
}
EVERY_DAY = ("fit_patch[linearpatch]", "heal_variant[lora]", "benchmark_perplexity")


@pytest.fixture
def unlimited_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healing fits its batches to the memory that it finds; here it is wrong about that."""
    monkeypatch.setattr(training, "position_budget", lambda *_: ONE_BATCH)


@pytest.mark.usefixtures("unlimited_healing")
@pytest.mark.parametrize("stage", slow_except(EVERY_DAY, MEMORY_SHARES))
def test_a_stage_that_is_too_large_is_halved(
    stage: str, run_on_cpu: RunOnCpu, run_on_devices: RunOnDevices
) -> None:
    expected = run_on_cpu(stage, tokens=ONE_BATCH)
    _, ample_machine = run_on_devices(stage, tokens=ONE_BATCH)
    for memory_share in MEMORY_SHARES[stage]:
        memory = int(memory_share * ample_machine.cards[0].peak)
        result, machine = run_on_devices(stage, memory, tokens=ONE_BATCH)
        assert machine.cards[0].n_failed
        assert not list_differences(expected, result)


@pytest.mark.usefixtures("unlimited_healing")
@pytest.mark.parametrize("stage", ["capture_activations", "fit_patch[ghost]", "heal_variant[lora]"])
def test_one_sample_that_is_too_large_ends_in_an_error(
    stage: str, run_on_devices: RunOnDevices
) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        run_on_devices(stage, 240_000)


def test_efficiency_is_measured_with_its_batch_which_is_never_halved(
    make_world: MakeWorld,
) -> None:
    options = Efficiency(prompt=8, generate=3, batch=900)
    message = r"benchmarks\.efficiency: 900 sequences of .*smaller batch"
    with pretend_devices(2_000_000):
        model = make_world().model()
        with pytest.raises(LaminaError, match=message):
            efficiency.measure_efficiency(model, [({}, model)], options)


@pytest.mark.parametrize("stage", ["sweep_removal[layer]", "fit_patch[ghost]"])
def test_nothing_of_a_stage_stays_on_the_device(stage: str, make_world: MakeWorld) -> None:
    with pretend_devices() as machine:
        STAGES[stage](make_world())
        gc.collect()
        assert machine.cards[0].alive == 0

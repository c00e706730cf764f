"""bfloat16 and float16 go through the stages as on the CPU, and what overflows is refused."""

from pathlib import Path

import pytest
import torch

from lamina.errors import LaminaError
from tests.device import world
from tests.device.compare import list_differences
from tests.device.conftest import MakeWorld, RunOnCpu, RunOnDevices
from tests.device.pretended import pretend_devices
from tests.device.stages import STAGES
from tests.given import tiny
from tests.given.slow import slow_except

EVERY_DAY = ("sweep_removal[layer]", "heal_variant[lora]")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("stage", slow_except(EVERY_DAY, STAGES))
def test_a_stage_runs_in_half_precision(stage: str, dtype: str, make_world: MakeWorld) -> None:
    """Numbers of few bits differ where kernels round otherwise, so they are not compared."""
    with pretend_devices() as machine:
        assert STAGES[stage](make_world(dtype=dtype)) is not None
        assert machine.cards[0].peak


def test_half_precision_gives_what_it_gives_on_the_cpu(
    run_on_cpu: RunOnCpu, run_on_devices: RunOnDevices
) -> None:
    expected = run_on_cpu("benchmark_perplexity", dtype="bfloat16")
    result, _ = run_on_devices("benchmark_perplexity", dtype="bfloat16")
    assert not list_differences(expected, result, relative=0.02)


@pytest.fixture(scope="module")
def overflowing_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in whose fourth layer the stream passes the largest float16, but not float32."""
    folder = world.save_models(tmp_path_factory.mktemp("overflowing"))
    model = tiny.model("llama")
    mlp = model.model.layers[3].mlp
    with torch.no_grad():
        mlp.up_proj.weight.mul_(3000)
        mlp.down_proj.weight.mul_(3000)
    model.save_pretrained(folder / "llama")
    return folder


@pytest.mark.parametrize(
    "stage",
    [
        "capture_activations",
        "sweep_removal[layer]",
        "sweep_stream",
        "sweep_gradient",
        "fit_patch[ghost]",
        "fit_patch[linearpatch]",
        "fit_patch[streamline]",
        "heal_variant[lora]",
        "benchmark_task",
        "benchmark_generation",
        "benchmark_perplexity",
        "diagnose_layers[variance]",
    ],
)
def test_what_overflows_in_float16_is_refused_with_the_remedy(
    stage: str, overflowing_models: Path, tmp_path: Path
) -> None:
    overflowing_world = world.World(overflowing_models, tmp_path, "float16")
    with pretend_devices(), pytest.raises(LaminaError, match=r"float32|bfloat16"):
        STAGES[stage](overflowing_world)

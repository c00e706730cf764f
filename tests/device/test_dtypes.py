"""bfloat16 and float16 go through the stages on a pretended device as on the CPU, and what overflows is refused."""

from pathlib import Path

import pytest
import torch

from lamina.errors import LaminaError
from tests.device import world
from tests.device.compare import differences
from tests.device.conftest import Made, OnDevices, OnHost
from tests.device.pretended import pretended
from tests.device.stages import STAGES
from tests.given import tiny
from tests.given.slow import slow_except

QUICK = ("sweep_removal[layer]", "heal_variant[lora]")
ALL = slow_except(QUICK, STAGES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("stage", ALL)
def test_a_stage_runs_in_half_precision(stage: str, dtype: str, made: Made) -> None:
    """Numbers of a few bits differ where kernels round otherwise, so what is asked is that they are numbers."""
    with pretended() as machine:
        assert STAGES[stage](made(dtype=dtype)) is not None
        assert machine.cards[0].peak


def test_half_precision_gives_what_it_gives_on_the_cpu(
    on_host: OnHost, on_devices: OnDevices
) -> None:
    told = {"dtype": "bfloat16"}
    wanted, found = (
        on_host("benchmark_perplexity", **told),
        on_devices("benchmark_perplexity", **told)[0],
    )
    assert not differences(wanted, found, relative=0.02)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose last layer but one gives the stream numbers that float16 does not reach, and float32 does."""
    folder = world.saved(tmp_path_factory.mktemp("overflowing"))
    model = tiny.model("llama")
    with torch.no_grad():
        for name, factor in (("up_proj", 3000), ("down_proj", 3000)):
            getattr(model.model.layers[3].mlp, name).weight.mul_(factor)
    model.save_pretrained(folder / "llama")
    return folder


@pytest.mark.parametrize(
    "stage",
    [
        *("capture_activations", "sweep_removal[layer]", "sweep_stream", "sweep_gradient"),
        *(
            "fit_patch[ghost]",
            "fit_patch[linearpatch]",
            "fit_patch[streamline]",
            "heal_variant[lora]",
        ),
        *(
            "benchmark_task",
            "benchmark_generation",
            "benchmark_perplexity",
            "diagnose_layers[variance]",
        ),
    ],
)
def test_what_overflows_in_float16_is_refused_with_the_remedy(
    stage: str, overflowing: Path, tmp_path: Path
) -> None:
    with pretended(), pytest.raises(LaminaError, match=r"float32|bfloat16"):
        STAGES[stage](world.World(overflowing, tmp_path, "float16"))

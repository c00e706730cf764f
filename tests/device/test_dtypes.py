"""bfloat16 and float16 go through the stages on a pretended device as on the CPU."""

import pytest

from tests.device.compare import differences
from tests.device.conftest import Made, OnDevices, OnHost
from tests.device.pretended import pretended
from tests.device.stages import STAGES

QUICK = (
    "capture_activations",
    "sweep_removal[layer]",
    "fit_patch[streamline]",
    "heal_variant[lora]",
    "diagnose_layers[fit]",
)
ALL = [stage if stage in QUICK else pytest.param(stage, marks=pytest.mark.devices) for stage in STAGES]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("stage", ALL)
def test_a_stage_runs_in_half_precision(stage: str, dtype: str, made: Made) -> None:
    """Numbers of a few bits differ where kernels round otherwise, so what is asked is that they are numbers."""
    with pretended() as machine:
        assert STAGES[stage](made(dtype=dtype)) is not None
        assert machine.cards[0].peak


def test_half_precision_gives_what_it_gives_on_the_cpu(on_host: OnHost, on_devices: OnDevices) -> None:
    told = {"dtype": "bfloat16"}
    wanted, found = on_host("benchmark_perplexity", **told), on_devices("benchmark_perplexity", **told)[0]
    assert not differences(wanted, found, relative=0.02)

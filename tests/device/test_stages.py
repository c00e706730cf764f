"""Every stage gives on a pretended device what it gives on the CPU, and a tensor that is left behind is found."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any

import pytest
import torch

from lamina.errors import LaminaError
from tests.device.compare import differences
from tests.device.conftest import Made, OnDevices, OnHost
from tests.device.pretended import pretended
from tests.device.stages import STAGES
from tests.given.slow import slow_except

QUICK = (
    "capture_activations",
    "sweep_removal[layer]",
    "sweep_gradient",
    "search_plans",
    "fit_patch[ghost]",
)
QUICK += (
    "fit_patch[streamline]",
    "heal_variant[lora]",
    "benchmark_together",
    "diagnose_patching",
    "export_variant",
)


@pytest.mark.parametrize("stage", slow_except(QUICK, STAGES))
def test_a_stage_gives_what_it_gives_on_the_cpu(
    stage: str, on_host: OnHost, on_devices: OnDevices
) -> None:
    found, machine = on_devices(stage)
    assert not differences(on_host(stage), found)
    assert machine.cards[0].peak > 0 and machine.sent > 0


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
@pytest.mark.parametrize(
    "stage", ["sweep_removal[layer]", "sweep_gradient", "fit_patch[ghost]", "heal_variant[lora]"]
)
def test_families_with_masks_of_their_own(
    stage: str, family: str, on_host: OnHost, on_devices: OnDevices
) -> None:
    """BLOOM has ALiBi positions, eager attention and masks that transformers makes; GPT-2 ties its head."""
    assert not differences(on_host(stage, family=family), on_devices(stage, family=family)[0])


# For the stages whose names begin so, a function whose result they need on the device.
MOMENTS = (
    "sweep_fit",
    "search_plans",
    "fit_patch[ghost]",
    "fit_patch[replaceme]",
    "fit_patch_refit",
)
PLANTED = {
    **dict.fromkeys(("sweep_removal", "sweep_stream"), "lamina.engine.packing:collate_lines"),
    **dict.fromkeys((*MOMENTS, "fit_patch_auto_weight"), "lamina.engine.moments:zero_moments"),
    **dict.fromkeys(("capture_activations", "sweep_looped"), "lamina.engine.taps:pad_sequences"),
    **dict.fromkeys(("diagnose_layers", "diagnose_probe"), "lamina.engine.taps:pad_sequences"),
    **{
        f"fit_patch[linearpatch{form}]": "lamina.repair.methods.linearpatch:_zero_sums"
        for form in ("", "_diag")
    },
    **{
        f"benchmark_{of}": "tests.device.stages:materialise"
        for of in ("task", "generation", "efficiency")
    },
    "sweep_gradient": "lamina.engine.weights:pad_sequences",
    "sweep_donors": "lamina.models.replacements:_load_sibling",
    "fit_patch[streamline]": "lamina.models.devices:copy_to_device",
    "heal_variant": "lamina.healing.objectives:pad_sequences",
    "benchmark_perplexity": "lamina.evaluation.perplexity:pad_sequences",
    "diagnose_patching": "lamina.engine.batches:pad_sequences",
}
# One operand alone, on the device or on the host.
ALONE = {"sweep_weights", "export_variant", "load_an_export", "budget_of_tokens"}
# Where the engine refuses a model, and so at each mistake that is planted in it, this measures variants without it.
BESIDE = {"benchmark_together"}
FIRST = {begin: next(stage for stage in STAGES if stage.startswith(begin)) for begin in PLANTED}


def left_on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the tensors of its result on the CPU: the mistake that is planted."""

    def moved(value: Any) -> Any:
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            return value.to("cpu")
        if is_dataclass(value):
            return replace(
                value,
                **{
                    each.name: moved(getattr(value, each.name))
                    for each in fields(value)
                    if each.init
                },
            )
        if isinstance(value, (tuple, list)):
            made = [moved(each) for each in value]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        return (
            {key: moved(each) for key, each in value.items()} if isinstance(value, dict) else value
        )

    return wraps(function)(lambda *args, **kwargs: moved(function(*args, **kwargs)))


def test_a_mistake_is_planted_in_each_stage() -> None:
    planted = tuple(begin.partition("[")[0] for begin in PLANTED)
    assert {stage for stage in STAGES if not stage.startswith(planted)} == ALONE | BESIDE


@pytest.mark.parametrize("begin", PLANTED)
def test_a_tensor_that_is_left_behind_is_found(
    begin: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = PLANTED[begin].partition(":")
    holder, _, name = name.rpartition(".")
    where = getattr(import_module(module), holder) if holder else import_module(module)
    monkeypatch.setattr(where, name, left_on_host(getattr(where, name)))
    with pretended(), pytest.raises((RuntimeError, LaminaError), match="same device"):
        STAGES[FIRST[begin]](made())

"""Every stage gives on a device what it gives on the CPU; a tensor left on the host is found."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any

import pytest
import torch

from lamina.errors import LaminaError
from tests.device.compare import list_differences
from tests.device.conftest import MakeWorld, RunOnCpu, RunOnDevices
from tests.device.pretended import pretend_devices
from tests.device.stages import STAGES
from tests.given.slow import slow_except

EVERY_DAY = (
    "capture_activations",
    "sweep_removal[layer]",
    "sweep_gradient",
    "search_plans",
    "fit_patch[ghost]",
    "fit_patch[streamline]",
    "heal_variant[lora]",
    "benchmark_together",
    "diagnose_patching",
    "export_variant",
)


@pytest.mark.parametrize("stage", slow_except(EVERY_DAY, STAGES))
def test_a_stage_gives_what_it_gives_on_the_cpu(
    stage: str, run_on_cpu: RunOnCpu, run_on_devices: RunOnDevices
) -> None:
    result, machine = run_on_devices(stage)
    assert not list_differences(run_on_cpu(stage), result)
    assert machine.cards[0].peak > 0
    assert machine.n_sent > 0


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
@pytest.mark.parametrize(
    "stage", ["sweep_removal[layer]", "sweep_gradient", "fit_patch[ghost]", "heal_variant[lora]"]
)
def test_families_with_masks_of_their_own(
    stage: str, family: str, run_on_cpu: RunOnCpu, run_on_devices: RunOnDevices
) -> None:
    """BLOOM has ALiBi, eager attention and masks of transformers; GPT-2 ties its head."""
    result, _ = run_on_devices(stage, family=family)
    assert not list_differences(run_on_cpu(stage, family=family), result)


# Stages by the beginning of their names, each with a function whose result it needs on the device.
PLANTED_FUNCTIONS = {
    "capture_activations": "lamina.engine.taps:pad_sequences",
    "sweep_removal": "lamina.engine.packing:collate_lines",
    "sweep_stream": "lamina.engine.packing:collate_lines",
    "sweep_gradient": "lamina.engine.weights:pad_sequences",
    "sweep_looped": "lamina.engine.taps:pad_sequences",
    "sweep_donors": "lamina.models.replacements:_load_sibling",
    "search_plans": "lamina.engine.moments:zero_moments",
    "fit_patch[ghost]": "lamina.engine.moments:zero_moments",
    "fit_patch[replaceme]": "lamina.engine.moments:zero_moments",
    "fit_patch[linearpatch]": "lamina.repairs.methods.linearpatch:_zero_sums",
    "fit_patch[linearpatch_diag]": "lamina.repairs.methods.linearpatch:_zero_sums",
    "fit_patch[streamline]": "lamina.models.devices:copy_to_device",
    "fit_patch_refit": "lamina.engine.moments:zero_moments",
    "fit_patch_auto_weight": "lamina.engine.moments:zero_moments",
    "heal_variant": "lamina.healing.objectives:pad_sequences",
    "benchmark_task": "tests.device.stages:materialise",
    "benchmark_generation": "tests.device.stages:materialise",
    "benchmark_efficiency": "tests.device.stages:materialise",
    "benchmark_perplexity": "lamina.evaluation.perplexity:pad_sequences",
    "diagnose_layers": "lamina.engine.taps:pad_sequences",
    "diagnose_probe": "lamina.engine.taps:pad_sequences",
    "diagnose_patching": "lamina.engine.batches:pad_sequences",
}
# Their operations have one operand alone, on the device or on the host.
STAGES_WITHOUT_MIXED_OPERANDS = {
    "sweep_weights",
    "export_variant",
    "load_an_export",
    "budget_of_tokens",
}
# Where a mistake makes the engine refuse a model, this measures the variants one by one.
STAGES_WITH_A_FALLBACK = {"benchmark_together"}


def left_on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the tensors of its result on the CPU: the mistake that is planted."""

    @wraps(function)
    def run_and_leave(*args: Any, **kwargs: Any) -> Any:
        return move_to_host(function(*args, **kwargs))

    return run_and_leave


def move_to_host(value: Any) -> Any:
    """A value with all tensors in it on the CPU."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return value.to("cpu")
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        moved_fields = {name: move_to_host(getattr(value, name)) for name in names}
        return replace(value, **moved_fields)  # type: ignore[type-var]
    if isinstance(value, (tuple, list)):
        entries = [move_to_host(entry) for entry in value]
        is_named_tuple = hasattr(value, "_fields")
        return type(value)(*entries) if is_named_tuple else type(value)(entries)
    if isinstance(value, dict):
        return {key: move_to_host(entry) for key, entry in value.items()}
    return value


def test_a_mistake_is_planted_in_each_stage() -> None:
    planted = tuple(prefix.partition("[")[0] for prefix in PLANTED_FUNCTIONS)
    not_planted = {stage for stage in STAGES if not stage.startswith(planted)}
    assert not_planted == STAGES_WITHOUT_MIXED_OPERANDS | STAGES_WITH_A_FALLBACK


@pytest.mark.parametrize("prefix", PLANTED_FUNCTIONS)
def test_a_tensor_that_is_left_on_the_host_is_found(
    prefix: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = next(name for name in STAGES if name.startswith(prefix))
    module_name, _, function_name = PLANTED_FUNCTIONS[prefix].partition(":")
    module = import_module(module_name)
    function = getattr(module, function_name)
    monkeypatch.setattr(module, function_name, left_on_host(function))

    with pretend_devices(), pytest.raises((RuntimeError, LaminaError), match="same device"):
        STAGES[stage](make_world())

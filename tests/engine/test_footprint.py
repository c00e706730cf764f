"""Predicted memory against what is really alive at a time, tensor by tensor, while a stage of the benchmark runs."""

import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lamina.engine import footprint, memory
from lamina.healing import full
from lamina.healing.batches import TrainingSource
from lamina.healing.full import Full
from tests.given import tiny
from tests.given.slow import slow_except

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scale

# Wide enough that streams outweigh what a consumer turns into another type at a time.
SHAPE = scale.Preset(8, 128, 352, 4, 1, 1000, (8, 120), (40, (50, 100)), 2048)


class Alive(TorchDispatchMode):
    """Counts the bytes of storages from the operation that makes them until they are freed; `peak` is the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves(args)
            if isinstance(leaf, torch.Tensor)
        }
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self.known:
                    self.known[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.freed, storage._cdata)
        return found

    def freed(self, key: int) -> None:
        self.now -= self.known.pop(key)


@pytest.mark.parametrize(
    "stage",
    slow_except(["moments"], ["capture", "removal_choices", "moments", "heal", "benchmark"]),
)
def test_a_stage_needs_what_is_predicted(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A sweep's logits are predicted with the exponentials that one operation makes of them and shows to nobody; a
    # benchmark's as if the second batch were as long as the first.
    least = 0.7 if stage == "removal_choices" else 0.85
    monkeypatch.setitem(scale.PRESETS, "test", SHAPE)
    stages = scale.Stages(SHAPE)
    work = getattr(stages, stage)()
    stages.forward([work.beside[0][:8]])
    with Alive() as alive:
        work.run()
    assert least * work.memory < alive.peak < 1.15 * work.memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_all_weights_keeps_what_is_predicted(dtype: torch.dtype) -> None:
    """Few tokens and many weights: own weights, their steps' copies, gradients and moments, and the best values."""
    base = tiny.model(hidden_size=160, intermediate_size=480).to(dtype)
    shape, data = (
        footprint.Shape.of(base.config, dtype.itemsize),
        [[number, 5, 6, 7] for number in range(20, 40)],
    )
    options = Full(epochs=1, max_steps=2, batch=1, objective="lm")
    with Alive() as alive:
        full.heal(base, {"units": ["2"]}, None, [TrainingSource(tiny.samples(data))], options)
    assert (
        0.85 * footprint.full_training_bytes(shape, 4)
        < alive.peak
        < 1.15 * footprint.full_training_bytes(shape, 4)
    )


def test_a_budget_is_the_largest_that_fits() -> None:
    def predicted(tokens: int) -> int:
        return 1000 * tokens + 5

    assert footprint.largest_token_budget(10**6, predicted) == 999
    assert footprint.largest_token_budget(10, predicted) == 64


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["capture", "removal_text", "efficiency"])
def test_the_benchmark_runs_in_its_smallest_form(stage: str) -> None:
    row = scale.measure("smoke", stage, 1)
    assert row["stage"] == stage and row["ratio"] > 0 and 0 < row["utilisation"] < 1
    # Four layers and three, two, one and none behind a removal: 10 of 4, and the logits of five models.
    assert row["counted"] == 1 if stage == "capture" else row["counted"] > 1


def test_auto_fills_what_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the room of 40 MB, a capture and a sweep under the budget found need about that, and no more."""
    monkeypatch.setattr(memory, "HOST", 4 * 10**7)
    stages = scale.Stages(SHAPE)
    samples = stages.texts() * 20
    assert memory.choose_token_budget("512", stages.model, samples) == 512
    for streams in (None, 10):
        found = memory.choose_token_budget("auto", stages.model, samples, streams)
        line, many, lengths = stages.longest, 10**5, {len(sample.sequence()) for sample in samples}
        if streams is None:
            needed = [
                footprint.capture_bytes(stages.shape, tokens, line, tokens)
                for tokens in (found, 2 * found)
            ]
        else:
            needed = [
                footprint.sweep_bytes(stages.shape, t, lengths, many, line - 1, 10)
                for t in (found, 2 * found)
            ]
        assert needed[0] <= 4.01e7 < needed[1]

"""Predicted memory, against the bytes of all tensors that are alive while a stage runs."""

import sys
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lamina.engine import footprint, memory
from lamina.healing import full
from lamina.healing.batches import TrainingSource
from lamina.healing.full import Full
from lamina.models.structure import layers_of
from tests import ROOT
from tests.given import tiny
from tests.given.slow import slow_except

sys.path.append(str(ROOT / "benchmarks"))
import scale

# Wide enough that streams are larger than the copies of another type that a consumer makes.
PRESET = scale.Preset(
    layers=8,
    channels=128,
    inner=352,
    heads=4,
    groups=1,
    vocabulary=1000,
    texts=(8, 120),
    documents=(40, (50, 100)),
    tokens=2048,
)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages from the operation that makes them until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self.bytes_by_storage: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        input_storages = [storage._cdata for storage in storages_of(args)]
        output = function(*args, **(kwargs or {}))
        for storage in storages_of(output):
            if storage._cdata not in input_storages:
                self.count(storage)
        return output

    def count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.bytes_by_storage:
            return
        self.bytes_by_storage[key] = storage.nbytes()
        self.current += storage.nbytes()
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self.discount, key)

    def discount(self, key: int) -> None:
        self.current -= self.bytes_by_storage.pop(key)


def storages_of(values: Any) -> list[torch.UntypedStorage]:
    """The storages of all tensors in nested values."""
    return [
        leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)
    ]


@pytest.mark.parametrize(
    "stage",
    slow_except(["moments"], ["capture", "removal_choices", "moments", "heal", "benchmark"]),
)
def test_a_stage_needs_what_is_predicted(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a sweep, the exponentials within one operation are predicted that no tensor shows."""
    least_share = 0.7 if stage == "removal_choices" else 0.85
    monkeypatch.setitem(scale.PRESETS, "test", PRESET)
    stages = scale.Stages(PRESET)
    work = getattr(stages, stage)()
    stages.forward([work.beside[0][:8]])

    with LiveBytes() as live_bytes:
        work.run()

    assert least_share * work.memory < live_bytes.peak < 1.15 * work.memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_all_weights_needs_what_is_predicted(dtype: torch.dtype) -> None:
    """With few tokens, this is weights, their copies, gradients and moments, and the best ones."""
    base_model = tiny.model(hidden_size=160, intermediate_size=480).to(dtype)
    sequences = [[first_token, 5, 6, 7] for first_token in range(20, 40)]
    source = TrainingSource(tiny.samples(sequences))
    options = Full(epochs=1, max_steps=2, batch=1, objective="lm")

    with LiveBytes() as live_bytes:
        full.heal(base_model, {"units": ["2"]}, None, [source], options)

    removed_parameters = sum(weight.numel() for weight in layers_of(base_model)[2].parameters())
    n_trained = base_model.num_parameters() - removed_parameters
    predicted = footprint.full_training_bytes(n_trained, dtype.itemsize)
    assert 0.85 * predicted < live_bytes.peak < 1.15 * predicted


def test_the_cache_of_a_model_is_counted_to_the_byte() -> None:
    model = tiny.model(num_attention_heads=4, num_key_value_heads=2)

    with torch.inference_mode():
        cache = model(input_ids=tiny.tokens(3, 11), use_cache=True).past_key_values

    n_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    shape = footprint.Shape.of(model.config, model.dtype.itemsize)
    assert footprint.cache_bytes(shape, line_length=11, n_lines=3) == n_bytes


@pytest.mark.parametrize(("prompt_length", "answer_length"), [(20, 100), (120, 10)])
def test_writing_answers_needs_what_is_predicted(prompt_length: int, answer_length: int) -> None:
    model = tiny.model(num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=8)
    model.generation_config.eos_token_id = None
    prompts = tiny.tokens(16, prompt_length)
    shape = footprint.Shape.of(model.config, model.dtype.itemsize)

    with LiveBytes() as live_bytes:
        model.generate(prompts, max_new_tokens=answer_length, do_sample=False)

    predicted = footprint.writing_bytes(shape, prompt_length, answer_length, 16)
    assert 0.7 * predicted < live_bytes.peak < 1.15 * predicted


@pytest.mark.parametrize(
    ("memory_bytes", "token_budget"), [(10**6, 999), (10, footprint.LEAST_BUDGET)]
)
def test_a_token_budget_is_the_largest_that_fits(memory_bytes: int, token_budget: int) -> None:
    def predict_bytes(tokens: int) -> int:
        return 1000 * tokens + 5

    assert footprint.largest_token_budget(memory_bytes, predict_bytes) == token_budget


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["capture", "removal_text", "efficiency"])
def test_the_benchmark_runs_in_its_smallest_form(stage: str) -> None:
    row = scale.measure("smoke", stage, 1)

    assert row["stage"] == stage
    assert row["ratio"] > 0
    assert 0 < row["utilisation"] < 1
    if stage == "capture":
        assert row["counted"] == 1
    else:
        # A sweep runs the layers after each removal too, and the heads of five models.
        assert row["counted"] > 1


@pytest.fixture
def stages_in_40_mb(monkeypatch: pytest.MonkeyPatch) -> scale.Stages:
    monkeypatch.setattr(memory, "HOST_BYTES", 4 * 10**7)
    return scale.Stages(PRESET)


def test_a_token_budget_of_the_configuration_is_kept(stages_in_40_mb: scale.Stages) -> None:
    samples = stages_in_40_mb.texts() * 20

    assert memory.choose_token_budget("512", stages_in_40_mb.model, samples) == 512


def test_auto_fills_the_memory_of_a_capture(stages_in_40_mb: scale.Stages) -> None:
    samples = stages_in_40_mb.texts() * 20

    tokens = memory.choose_token_budget("auto", stages_in_40_mb.model, samples)

    def capture_bytes(tokens: int) -> int:
        longest = stages_in_40_mb.longest
        return footprint.capture_bytes(stages_in_40_mb.shape, tokens, longest, tokens)

    assert capture_bytes(tokens) <= 4.01e7 < capture_bytes(2 * tokens)


def test_auto_fills_the_memory_of_a_sweep(stages_in_40_mb: scale.Stages) -> None:
    n_streams = 10
    samples = stages_in_40_mb.texts() * 20

    tokens = memory.choose_token_budget("auto", stages_in_40_mb.model, samples, n_streams)

    def sweep_bytes(tokens: int) -> int:
        lengths = {len(sample.sequence()) for sample in samples}
        n_scored = stages_in_40_mb.longest - 1
        return footprint.sweep_bytes(
            stages_in_40_mb.shape, tokens, lengths, 10**5, n_scored, n_streams
        )

    assert sweep_bytes(tokens) <= 4.01e7 < sweep_bytes(2 * tokens)

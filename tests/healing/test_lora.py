"""Healing trains an adapter that PEFT can read, on a calibration's answers, and keeps the best
epoch or none.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.errors import LaminaError
from lamina.healing import lora, training
from lamina.healing.batches import TrainingSource, split_sources
from lamina.healing.lora import Lora
from lamina.healing.objectives import Objective
from lamina.healing.training import TrainingRow
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of, list_linear_modules
from lamina.store import parquet
from lamina.store.unfinished import Progress
from tests.families import configurations
from tests.given import tiny
from tests.healing.examples import (
    FAST_OPTIONS,
    PLAN,
    chosen_row,
    copy_parameters,
    has_parameters,
    make_samples,
    validation_losses,
)


def validate(model: PreTrainedModel, samples: list[Sample], max_positions: int) -> float:
    """The language modelling loss of a model, per scored token."""
    objective = Objective("lm", model, model)
    return training.measure_validation_loss(objective, [TrainingSource(samples)], max_positions)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_neox", "phi3", "bloom"])
def test_training_lowers_the_loss_and_leaves_the_base_model_alone(family: str) -> None:
    base = tiny.model(family)
    parameters_before = copy_parameters(base)
    sources = [TrainingSource(make_samples())]
    _, rows = lora.heal(base, PLAN, None, sources, Lora(**FAST_OPTIONS))

    losses = validation_losses(rows)
    assert len(losses) == 5
    assert min(losses) < 0.98 * losses[0]
    assert chosen_row(rows)["validation_loss"] == min(losses)
    assert has_parameters(base, parameters_before)
    assert all(parameter.requires_grad for parameter in base.parameters())
    keys = {"model": "m", "calibration": "c", "selector": "s"}
    parquet.from_rows("training", rows, **keys, removed=1, repair="r", healing="h")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_saved_adapter_gives_the_trained_model_back(family: str, tmp_path: Path) -> None:
    base = tiny.model(family)
    token_ids = tiny.tokens()
    operator = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 50
    patches = {(2, 3): Patch(operator)}
    sources = [TrainingSource(make_samples())]
    healed, _ = lora.heal(base, PLAN, patches, sources, Lora(**FAST_OPTIONS))
    lora.save(healed, tmp_path)

    with torch.no_grad():
        trained_logits = healed.model(input_ids=token_ids).logits
        unhealed_logits = materialise(base, PLAN, patches)(input_ids=token_ids).logits
        loaded_logits = materialise(base, PLAN, patches, tmp_path)(input_ids=token_ids).logits
        peft_model = PeftModel.from_pretrained(materialise(base, PLAN, patches), tmp_path)
        peft_logits = peft_model(input_ids=token_ids).logits
        unhealed_again = materialise(base, PLAN, patches)(input_ids=token_ids).logits
    torch.testing.assert_close(loaded_logits, trained_logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(peft_logits, trained_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(unhealed_logits, trained_logits, atol=1e-2)
    assert torch.equal(unhealed_again, unhealed_logits)

    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert {path.name for path in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_each_run_of_a_layer_has_its_own_update(tmp_path: Path) -> None:
    base = tiny.model()
    plan = {"units": ["1-2x2", "4"]}
    sources = [TrainingSource(make_samples())]
    healed, rows = lora.heal(base, plan, None, sources, Lora(**FAST_OPTIONS))
    lora.save(healed, tmp_path)
    losses = validation_losses(rows)
    assert losses[-1] < losses[0]

    loaded = materialise(base, plan, None, tmp_path)
    token_ids = tiny.tokens()
    with torch.no_grad():
        trained_logits = healed.model(input_ids=token_ids).logits
        loaded_logits = loaded(input_ids=token_ids).logits
    torch.testing.assert_close(loaded_logits, trained_logits, atol=1e-4, rtol=1e-4)
    first_run, second_run = (layers_of(loaded)[index].mlp.up_proj.weight for index in (1, 3))
    assert not torch.equal(first_run, second_run)


def test_training_that_hurts_keeps_the_model_as_it_was() -> None:
    """The held-out documents have another answer than those that are trained on."""
    base = tiny.model()
    options = Lora(**{**FAST_OPTIONS, "epochs": 2})
    _, (validation_source,) = split_sources([TrainingSource(make_samples())], options.seed)
    contradictory_samples = []
    for sample in make_samples():
        answer = 20 if sample in validation_source.samples else 5
        row = replace(sample.rows[0], continuation=(answer,))
        contradictory_samples.append(replace(sample, rows=(row,)))
    sources = [TrainingSource(contradictory_samples)]
    healed, rows = lora.heal(base, PLAN, None, sources, options)

    assert chosen_row(rows)["epoch"] == 0
    token_ids = tiny.tokens()
    with torch.no_grad():
        unhealed_logits = materialise(base, PLAN)(input_ids=token_ids).logits
        assert torch.equal(healed.model(input_ids=token_ids).logits, unhealed_logits)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_validated_is_the_saved_variant_in_its_dtype(family: str, tmp_path: Path) -> None:
    base = tiny.model(family).bfloat16()
    parameters_before = copy_parameters(base)
    # Updates of about the spacing of bfloat16: merged, many of them round away.
    options = Lora(**{**FAST_OPTIONS, "learning_rate": 1e-3})
    sources = [TrainingSource(make_samples())]
    healed, rows = lora.heal(base, PLAN, None, sources, options)
    lora.save(healed, tmp_path)
    _, (validation_source,) = split_sources(sources, options.seed)
    validation_samples = list(validation_source.samples)

    saved = materialise(base, PLAN, None, tmp_path)
    best_row = chosen_row(rows)
    assert best_row["epoch"] > 0
    assert next(saved.parameters()).dtype == torch.bfloat16
    assert best_row["validation_loss"] == validate(saved, validation_samples, 10_000)
    unhealed = materialise(base, PLAN)
    assert rows[0]["validation_loss"] == validate(unhealed, validation_samples, 10_000)
    # An adapter that is not merged has another loss.
    assert best_row["validation_loss"] != validate(healed.model, validation_samples, 10_000)
    assert has_parameters(base, parameters_before)


def test_validation_keeps_to_its_memory_bound_and_to_its_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.model()
    n_samples = len(make_samples())
    batch_positions: list[int] = []

    def record_positions(layer: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        batch_positions.append(args[0].shape[:2].numel())

    layers_of(model)[0].register_forward_pre_hook(record_positions)
    losses = []
    for max_positions in (10_000, 30, 1):
        losses.append(validate(model, make_samples(), max_positions))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    whole_batch, *bounded = batch_positions
    single_samples = bounded[-n_samples:]
    assert whole_batch > 300
    assert max(bounded[:-n_samples]) <= 30
    assert max(single_samples) <= 9

    batch_positions.clear()
    monkeypatch.setattr(training, "position_budget", lambda *arguments: 40)
    options = Lora(**{**FAST_OPTIONS, "epochs": 1})
    lora.heal(model, PLAN, None, [TrainingSource(make_samples())], options)
    assert 0 < max(batch_positions) <= 40


class RecordedProgress(Progress):
    """Keeps the weights of every save: a training is saved at the end of each pass."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def load(self) -> None:
        return None

    def save(self, tensors: Any, facts: Any) -> None:
        saved_weights = {}
        for name, tensor in tensors.items():
            if name.startswith("weight/"):
                saved_weights[name.removeprefix("weight/")] = tensor.detach().clone()
        self.weights.append(saved_weights)


def without_choice(rows: Sequence[TrainingRow]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "chosen"} for row in rows]


def test_the_weights_of_a_pass_are_those_that_the_whole_training_had_then() -> None:
    """With the learning rates of the whole training, and no step after the pass."""
    base = tiny.model()
    options = {**FAST_OPTIONS, "dropout": 0.1, "epochs": 3, "warmup_steps": 2}
    sources = [TrainingSource(make_samples())]
    progress = RecordedProgress()
    _, whole_rows = lora.heal(base, PLAN, None, sources, Lora(**options), progress)
    assert len(progress.weights) == 3

    for epoch, expected_weights in enumerate(progress.weights, start=1):
        healed, rows = lora.heal(base, PLAN, None, sources, Lora(**options, keep=epoch))
        assert without_choice(rows) == without_choice(whole_rows[: len(rows)])
        assert rows[-1]["epoch"] == epoch
        assert chosen_row(rows) == rows[-1]
        assert healed.weights.keys() == expected_weights.keys()
        for name, weight in healed.weights.items():
            assert torch.equal(weight, expected_weights[name])


def test_a_pass_that_the_steps_do_not_reach_is_refused() -> None:
    options = Lora(**{**FAST_OPTIONS, "epochs": 3, "max_steps": 2, "keep": 3})
    sources = [TrainingSource(make_samples())]
    with pytest.raises(LaminaError, match="keep: 3 .* ends the training in epoch 1. Write more"):
        lora.heal(tiny.model(), PLAN, None, sources, options)


def test_the_same_seed_gives_the_same_adapter_and_max_steps_ends_training() -> None:
    base = tiny.model()
    options = Lora(**{**FAST_OPTIONS, "dropout": 0.1, "max_steps": 7})
    sources = [TrainingSource(make_samples())]
    _, rows = lora.heal(base, PLAN, None, sources, options)
    _, rows_again = lora.heal(base, PLAN, None, sources, options)
    assert rows == rows_again
    assert rows[-1]["step"] == 7
    assert rows[-1]["learning_rate"] == pytest.approx(0.0, abs=1e-9)
    assert "validation_loss" in rows[-1]


def test_families_and_calibrations_that_cannot_be_healed_are_explained() -> None:
    sources = [TrainingSource(make_samples())]
    mlp_options = Lora(**{**FAST_OPTIONS, "targets": "mlp"})
    with pytest.raises(LaminaError, match="mamba"):  # which has no MLP
        lora.heal(configurations.model("mamba"), PLAN, None, sources, mlp_options)
    # Its mixers can be healed, although its configuration knows no attention heads.
    mixer_options = Lora(**{**FAST_OPTIONS, "targets": "attention"})
    _, rows = lora.heal(configurations.model("mamba"), PLAN, None, sources, mixer_options)
    assert rows
    # One map of deepseek_v4 is several, of groups of heads, and takes inputs of another shape.
    attention_maps = list_linear_modules(configurations.model("deepseek_v4"), "attention")
    assert not any("o_a_proj" in name for name in attention_maps)
    with pytest.raises(LaminaError, match="at least 4"):
        few_samples = [TrainingSource(make_samples(3))]
        lora.heal(tiny.model(), PLAN, None, few_samples, Lora(**FAST_OPTIONS))

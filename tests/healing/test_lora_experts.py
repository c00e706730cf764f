"""Experts that are stacked in one parameter are healed too: their adapter, once merged, is what was
trained.
"""

import logging
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lamina.healing import lora
from lamina.healing.batches import TrainingSource
from lamina.healing.lora import Lora
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from tests.families import configurations
from tests.given import tiny
from tests.given.slow import slow_except
from tests.healing.examples import (
    FAST_OPTIONS,
    PLAN,
    copy_parameters,
    has_parameters,
    make_samples,
    validation_losses,
)

FAMILIES = ["mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "jetmoe"]


@pytest.mark.parametrize("family", slow_except(FAMILIES[:1], FAMILIES))
def test_a_saved_adapter_of_experts_gives_the_trained_model_back(
    family: str, tmp_path: Path
) -> None:
    base = configurations.model(family)
    parameters_before = copy_parameters(base)
    options = Lora(**{**FAST_OPTIONS, "targets": "mlp"})
    healed, rows = lora.heal(base, PLAN, None, [TrainingSource(make_samples())], options)
    losses = validation_losses(rows)
    assert min(losses) < 0.98 * losses[0]
    lora.save(healed, tmp_path)

    token_ids = tiny.tokens()
    with torch.no_grad():
        trained_logits = healed.model(input_ids=token_ids).logits
        merged = materialise(base, PLAN, None, tmp_path)
        merged_logits = merged(input_ids=token_ids).logits
        unhealed_logits = materialise(base, PLAN)(input_ids=token_ids).logits
        with lora.merged_updates(healed.model):
            validated_logits = healed.model(input_ids=token_ids).logits
    torch.testing.assert_close(merged_logits, trained_logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(merged_logits, validated_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(unhealed_logits, trained_logits, atol=1e-2)
    assert has_parameters(base, parameters_before)
    assert_only_experts_changed(materialise(base, PLAN), merged)


def assert_only_experts_changed(unhealed: PreTrainedModel, healed: PreTrainedModel) -> None:
    """The experts of every layer have an update of the rank in the options; attention has none."""
    weights_before = dict(unhealed.named_parameters())
    n_changed_parameters = 0
    for name, weight in healed.named_parameters():
        change = (weight - weights_before[name]).detach()
        if "self_att" in name:
            assert not change.any()
        elif change.dim() == 3:
            ranks = torch.linalg.matrix_rank(change, atol=1e-6)
            assert bool((ranks <= FAST_OPTIONS["rank"]).all())
            assert bool((ranks > 0).any())
            n_changed_parameters += 1
    n_layers = len(layers_of(healed))
    assert n_changed_parameters in (n_layers, 2 * n_layers)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_peft_reads_an_adapter_of_experts(family: str, tmp_path: Path) -> None:
    base = configurations.model(family)
    options = Lora(rank=2, alpha=4.0, dropout=0.0, targets="mlp")
    healed = lora.prepare_training(materialise(base, PLAN), options)
    generator = torch.Generator().manual_seed(0)
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    lora.save(healed, tmp_path)

    token_ids = tiny.tokens()
    with torch.no_grad():
        trained_logits = healed.model.eval()(input_ids=token_ids).logits
        peft_model = PeftModel.from_pretrained(materialise(base, PLAN), tmp_path)
        peft_logits = peft_model(input_ids=token_ids).logits
    torch.testing.assert_close(peft_logits, trained_logits, atol=1e-5, rtol=1e-5)


def test_experts_are_trained_without_dropout_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = Lora(dropout=0.1, targets="all")
    with caplog.at_level(logging.WARNING):
        config = lora.configure_peft(configurations.model("mixtral"), options)
    assert config.lora_dropout == 0
    assert "MixtralForCausalLM has experts stacked in one parameter" in caplog.text
    assert lora.configure_peft(tiny.model(), Lora(dropout=0.1)).lora_dropout == 0.1

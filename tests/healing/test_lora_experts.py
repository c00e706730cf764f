"""Experts that are stacked in one parameter are healed too: an adapter of them, once merged, is what was trained."""

import logging
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from lamina.healing import lora
from lamina.healing.lora import Lora
from lamina.healing.training import Source
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from tests.families import configurations
from tests.given import tiny
from tests.given.slow import slow_but
from tests.healing.test_lora import FAST, PLAN, samples

FAMILIES = ["mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "jetmoe"]


@pytest.mark.parametrize("family", slow_but(FAMILIES[:1], FAMILIES))
def test_a_saved_adapter_of_experts_gives_the_trained_model_back(
    family: str, tmp_path: Path
) -> None:
    base, ids = configurations.model(family), tiny.tokens()
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    healed, rows = lora.heal(
        base, PLAN, None, [Source(samples())], Lora(**{**FAST, "targets": "mlp"})
    )
    losses = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    assert min(losses) < 0.98 * losses[0]
    lora.save(healed, tmp_path)
    with torch.no_grad():
        wanted = healed.model(input_ids=ids).logits
        merged = materialise(base, PLAN, None, tmp_path)
        mine = merged(input_ids=ids).logits
        unhealed = materialise(base, PLAN)
        plain = unhealed(input_ids=ids).logits
        with lora.merged(healed.model):
            validated = healed.model(input_ids=ids).logits
    torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine, validated, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, wanted, atol=1e-2)
    assert all(torch.equal(parameter, before[name]) for name, parameter in base.named_parameters())
    # Of every expert of every layer an update of the rank that was asked for, and of nothing outside of MLPs.
    there = dict(unhealed.named_parameters())
    changes = {name: weight - there[name] for name, weight in merged.named_parameters()}
    stacked = {
        name: change
        for name, change in changes.items()
        if change.dim() == 3 and "self_att" not in name
    }
    assert len(stacked) in (2 * len(layers_of(merged)), len(layers_of(merged)))
    for change in stacked.values():
        ranks = torch.linalg.matrix_rank(change, atol=1e-6)
        assert bool((ranks <= FAST["rank"]).all()) and bool((ranks > 0).any())
    assert not any(change.any() for name, change in changes.items() if "self_att" in name)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_peft_reads_an_adapter_of_experts(family: str, tmp_path: Path) -> None:
    base, ids = configurations.model(family), tiny.tokens()
    healed = lora.trainable(
        materialise(base, PLAN), Lora(rank=2, alpha=4.0, dropout=0.0, targets="mlp")
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    lora.save(healed, tmp_path)
    with torch.no_grad():
        wanted = healed.model.eval()(input_ids=ids).logits
        found = PeftModel.from_pretrained(materialise(base, PLAN), tmp_path)(input_ids=ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_experts_are_trained_without_dropout_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        config = lora.lora_config(configurations.model("mixtral"), Lora(dropout=0.1, targets="all"))
    assert (
        config.lora_dropout == 0
        and "MixtralForCausalLM has experts stacked in one parameter" in caplog.text
    )
    assert lora.lora_config(tiny.model(), Lora(dropout=0.1)).lora_dropout == 0.1

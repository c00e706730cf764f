"""Healing trains an adapter that PEFT can read, on the calibration's answers, and keeps the best epoch or none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.errors import LaminaError
from lamina.healing import lora, training
from lamina.healing.lora import Lora
from lamina.healing.objectives import Objective
from lamina.healing.training import Source
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of, linear_maps
from lamina.store import parquet as store
from tests.families import configurations
from tests.given import tiny

PLAN = {"units": ["2"], "removed": 1}
FAST = {
    "rank": 4,
    "alpha": 8.0,
    "dropout": 0.0,
    "learning_rate": 1e-2,
    "epochs": 4,
    "batch": 8,
    "warmup_steps": 2,
}


def samples(count: int = 48, kind: str = "choices") -> list[Sample]:
    """The answer tells whether the context's first token is even: something to learn."""
    found = []
    for number in range(count):
        context = tuple(tiny.tokens(1, 4 + number % 5, seed=number)[0].tolist())
        rows = tuple(Row(context, (answer,), 2) for answer in (4 + context[0] % 2, 12))
        found.append(Sample(number, kind, 0, rows if kind == "choices" else rows[:1], str(number)))
    return found


def validate(model: PreTrainedModel, held: list[Sample], positions: int) -> float:
    """The loss on samples that were not trained on."""
    return training.validate(Objective("lm", model, model), [Source(held)], positions)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_neox", "phi3", "bloom"])
def test_training_lowers_the_loss_and_leaves_the_base_model_alone(family: str) -> None:
    base = tiny.model(family)
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    healed, rows = lora.heal(base, PLAN, None, [Source(samples())], Lora(**FAST))
    losses = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    assert len(losses) == 5 and min(losses) < 0.98 * losses[0]
    chosen = [row for row in rows if row["chosen"]]
    assert len(chosen) == 1 and chosen[0]["validation_loss"] == min(losses)
    assert all(torch.equal(parameter, before[name]) for name, parameter in base.named_parameters())
    assert all(parameter.requires_grad for parameter in base.parameters())
    store.from_rows(
        "training",
        rows,
        model="m",
        calibration="c",
        selector="s",
        removed=1,
        repair="r",
        healing="h",
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_saved_adapter_gives_the_trained_model_back(family: str, tmp_path: Path) -> None:
    base, ids = tiny.model(family), tiny.tokens()
    patches = {(2, 3): Patch(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 50)}
    healed, _ = lora.heal(base, PLAN, patches, [Source(samples())], Lora(**FAST))
    lora.save(healed, tmp_path)
    with torch.no_grad():
        wanted = healed.model(input_ids=ids).logits
        unhealed = materialise(base, PLAN, patches)(input_ids=ids).logits
        mine = materialise(base, PLAN, patches, tmp_path)(input_ids=ids).logits
        peft = PeftModel.from_pretrained(materialise(base, PLAN, patches), tmp_path)(
            input_ids=ids
        ).logits
        again = materialise(base, PLAN, patches)(input_ids=ids).logits
    torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(peft, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(unhealed, wanted, atol=1e-2)
    assert torch.equal(again, unhealed)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_training_that_hurts_keeps_the_model_as_it_was() -> None:
    base, ids, options = tiny.model(), tiny.tokens(), Lora(**{**FAST, "epochs": 2})
    _, (held,) = training.split([Source(samples())], options.seed)
    answers = {True: 20, False: 5}
    contradictory = [
        replace(
            sample, rows=(replace(sample.rows[0], continuation=(answers[sample in held.samples],)),)
        )
        for sample in samples()
    ]
    healed, rows = lora.heal(base, PLAN, None, [Source(contradictory)], options)
    assert (
        rows[0]["chosen"] and rows[0]["epoch"] == 0 and not any(row["chosen"] for row in rows[1:])
    )
    with torch.no_grad():
        assert torch.equal(
            healed.model(input_ids=ids).logits, materialise(base, PLAN)(input_ids=ids).logits
        )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_validated_is_the_saved_variant_in_its_dtype(family: str, tmp_path: Path) -> None:
    base = tiny.model(family)
    for parameter in base.parameters():
        parameter.data = parameter.data.bfloat16()
    before = [parameter.clone() for parameter in base.parameters()]
    # Updates of about the spacing of bfloat16: merged, many of them round away.
    options = Lora(**{**FAST, "learning_rate": 1e-3})
    healed, rows = lora.heal(base, PLAN, None, [Source(samples())], options)
    lora.save(healed, tmp_path)
    _, (held,) = training.split([Source(samples())], options.seed)
    validation = list(held.samples)
    saved = materialise(base, PLAN, None, tmp_path)
    (chosen,) = (row for row in rows if row["chosen"])
    assert chosen["epoch"] > 0 and next(saved.parameters()).dtype == torch.bfloat16
    assert chosen["validation_loss"] == validate(saved, validation, 10_000)
    assert rows[0]["validation_loss"] == validate(materialise(base, PLAN), validation, 10_000)
    # The adapter beside the weights says something else.
    assert chosen["validation_loss"] != validate(healed.model, validation, 10_000)
    assert all(map(torch.equal, base.parameters(), before))


def test_validation_keeps_to_its_memory_bound_and_to_its_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, widths = tiny.model(), []
    layers_of(model)[0].register_forward_pre_hook(
        lambda module, args: widths.append(args[0].shape[:2].numel())
    )
    losses = [validate(model, samples(), positions) for positions in (10_000, 30, 1)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert widths[0] > 300 and max(widths[1:-48]) <= 30 and max(widths[-48:]) <= 9
    widths.clear()
    monkeypatch.setattr(training, "positions", lambda *given: 40)
    lora.heal(model, PLAN, None, [Source(samples())], Lora(**{**FAST, "epochs": 1}))
    assert widths and max(widths) <= 40


def test_the_same_seed_gives_the_same_adapter_and_max_steps_ends_training() -> None:
    base = tiny.model()
    options = Lora(**{**FAST, "dropout": 0.1, "max_steps": 7})
    runs = [lora.heal(base, PLAN, None, [Source(samples())], options)[1] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][-1]["step"] == 7 and runs[0][-1]["learning_rate"] == pytest.approx(0.0, abs=1e-9)
    assert runs[0][-1]["validation_loss"] is not None


def test_families_and_calibrations_that_cannot_be_healed_are_explained() -> None:
    with pytest.raises(LaminaError, match="mamba"):  # which has no MLP
        targets = Lora(**{**FAST, "targets": "mlp"})
        lora.heal(configurations.model("mamba"), PLAN, None, [Source(samples())], targets)
    # Its mixers can be, though its configuration knows no attention heads.
    mixers = Lora(**{**FAST, "targets": "attention"})
    assert lora.heal(configurations.model("mamba"), PLAN, None, [Source(samples())], mixers)[1]
    # One of its maps is several, of groups of heads, and takes inputs of another shape.
    assert not any(
        "o_a_proj" in name for name in linear_maps(configurations.model("deepseek_v4"), "attention")
    )
    with pytest.raises(LaminaError, match="at least 4"):
        lora.heal(tiny.model(), PLAN, None, [Source(samples(3))], Lora(**FAST))

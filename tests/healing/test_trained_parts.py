"""What a healing trains: updates, patches or both. Nothing else changes, and every form of a
variant has them.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, dynamic_module_utils

from lamina.errors import LaminaError
from lamina.healing import lora, training
from lamina.healing.batches import OptimiserStep, TrainingSource, plan_steps, split_sources
from lamina.healing.lora import Lora
from lamina.healing.objectives import Objective
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.export.modeling_lamina import Patched
from lamina.models.load import load_folder, load_quantised
from lamina.models.materialise import materialise
from lamina.repairs.protocol import Fitted
from tests.families.test_families import base_folder, source_of
from tests.given import tiny
from tests.given.slow import slow_except
from tests.healing.examples import (
    FAST_OPTIONS,
    PATCH_TENSORS,
    REPAIRED_UNITS,
    chosen_row,
    copy_parameters,
    fitted_patches,
    has_parameters,
    make_samples,
    validation_losses,
)


def perturb_weights(healed: lora.LoraVariant) -> None:
    """Change all trained weights, so that a test does not depend on which epoch was kept."""
    for index, weight in enumerate(healed.weights.values()):
        generator = torch.Generator().manual_seed(index)
        weight.data += torch.randn(weight.shape, generator=generator) / 20


@pytest.mark.parametrize(
    "family", slow_except(["llama", "gpt2"], ["llama", "gpt2", "gemma2", "phi3", "bloom", "opt"])
)
def test_adapters_and_patches_survive_every_form(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    base = tiny.model(family)
    plan = {"units": REPAIRED_UNITS}
    parameters_before = copy_parameters(base)
    options = Lora(
        **{**FAST_OPTIONS, "epochs": 1, "max_steps": 3, "train": "both", "targets": "all"}
    )
    sources = [TrainingSource(make_samples(12))]
    healed, _ = lora.heal(base, plan, fitted_patches(), sources, options)
    perturb_weights(healed)
    trained_names = {name.split(".lora_")[0].split(".")[-1] for name in healed.weights}
    assert trained_names >= PATCH_TENSORS
    assert len(trained_names) >= len(PATCH_TENSORS) + 3  # some projections too
    lora.save(healed, tmp_path / "adapter")

    token_ids = tiny.tokens()
    with torch.no_grad():
        trained_logits = healed.model(input_ids=token_ids).logits
        saved = materialise(base, plan, fitted_patches(), tmp_path / "adapter")
        saved_logits = saved(input_ids=token_ids).logits
        unhealed = materialise(base, plan, fitted_patches())
        unhealed_logits = unhealed(input_ids=token_ids).logits
        source = source_of(base_folder(tmp_path / "base"), REPAIRED_UNITS)
        form = save.export_variant(
            base, source, tmp_path / "export", fitted_patches(), tmp_path / "adapter"
        )
        exported = load_folder(tmp_path / "export", "auto", trust_remote_code=True)
        exported_logits = exported(input_ids=token_ids).logits
    torch.testing.assert_close(saved_logits, trained_logits, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(exported_logits, saved_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(unhealed_logits, trained_logits, atol=1e-2)
    assert form == "code"
    assert has_parameters(base, parameters_before)
    assert all(parameter.requires_grad for parameter in base.parameters())


@pytest.mark.parametrize(
    "dtype", slow_except([torch.bfloat16], [torch.float32, torch.bfloat16, torch.float16])
)
def test_patches_train_from_their_closed_form_and_nothing_else_changes(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    base = tiny.model().to(dtype)
    plan = {"units": REPAIRED_UNITS}
    options = Lora(
        **{**FAST_OPTIONS, "train": "patch", "objective": "distill", "learning_rate": 1e-3}
    )
    sources = [TrainingSource(make_samples(48, "text"))]
    healed, rows = lora.heal(base, plan, fitted_patches(), sources, options)
    losses = validation_losses(rows)
    assert min(losses) < 0.98 * losses[0]
    assert {name.rsplit(".", 1)[1] for name in healed.weights} == PATCH_TENSORS
    lora.save(healed, tmp_path)

    saved = materialise(base, plan, fitted_patches(), tmp_path)
    unhealed = materialise(base, plan, fitted_patches())
    for saved_parameter, shared_parameter in zip(
        saved.parameters(), unhealed.parameters(), strict=True
    ):
        assert saved_parameter is shared_parameter
    assert_patches_moved(saved, unhealed)

    # What was validated is what is benchmarked, before the training and after it.
    _, validation_sources = split_sources(sources, options.seed)
    for model, row in ((unhealed, rows[0]), (saved, chosen_row(rows))):
        objective = Objective("distill", model, base)
        loss = training.measure_validation_loss(objective, validation_sources, 100_000)
        assert loss == row["validation_loss"]


def assert_patches_moved(healed: PreTrainedModel, unhealed: PreTrainedModel) -> None:
    """Every tensor of a patch has changed by less than its norm, and has kept its dtype."""
    for module, unhealed_module in zip(healed.modules(), unhealed.modules(), strict=True):
        if isinstance(module, Patched) and isinstance(unhealed_module, Patched):
            for name, closed_form in unhealed_module.patch_parts.items():
                trained = module.patch_parts[name]
                assert 0 < (trained - closed_form).norm() < closed_form.norm()
                assert trained.dtype == closed_form.dtype


def test_the_teacher_is_the_unpruned_model_with_no_copy_of_a_weight() -> None:
    base = tiny.model()
    token_ids = tiny.tokens()
    with torch.no_grad():
        logits_before = base(input_ids=token_ids).logits
    variant = materialise(base, {"units": ["2"]})
    healed = lora.prepare_training(variant, Lora(targets="all"))
    for weight in healed.weights.values():
        weight.data.normal_(generator=torch.Generator().manual_seed(0))

    base_parameters = {id(parameter) for parameter in base.parameters()}
    own_names = {
        name
        for name, parameter in variant.named_parameters()
        if id(parameter) not in base_parameters
    }
    assert own_names == set(healed.weights)
    with torch.no_grad():
        assert torch.equal(base(input_ids=token_ids).logits, logits_before)
        assert not torch.allclose(variant(input_ids=token_ids).logits, logits_before, atol=1)


def test_a_variant_without_patches_has_none_to_train() -> None:
    folded_patches = {(2, 3): Fitted("replaceme", {"operator": torch.zeros(32, 32)})}
    options = Lora(**{**FAST_OPTIONS, "train": "patch"})
    sources = [TrainingSource(make_samples())]
    for patches in (None, folded_patches):
        with pytest.raises(LaminaError, match="train: patch.*repair none.*ghost or linearpatch"):
            lora.heal(tiny.model(), {"units": ["2"]}, patches, sources, options)


def test_streams_are_not_compared_after_removed_sublayers() -> None:
    options = Lora(**{**FAST_OPTIONS, "objective": "lm+hidden"})
    sources = [TrainingSource(make_samples())]
    with pytest.raises(LaminaError, match="lm\\+hidden.*sub-layers"):
        lora.heal(tiny.model(), {"units": ["2.mlp"]}, None, sources, options)


def test_trained_patches_of_another_variant_are_refused(tmp_path: Path) -> None:
    base = tiny.model()
    options = Lora(**{**FAST_OPTIONS, "train": "patch", "epochs": 1})
    sources = [TrainingSource(make_samples())]
    healed, _ = lora.heal(base, {"units": REPAIRED_UNITS}, fitted_patches(), sources, options)
    lora.save(healed, tmp_path)
    with pytest.raises(LaminaError, match="another variant"):
        materialise(base, {"units": REPAIRED_UNITS}, None, tmp_path)
    other_patches = {(2, 3): Patch(torch.zeros(32, 32))}
    with pytest.raises(LaminaError, match="another variant"):
        materialise(base, {"units": ["2"]}, other_patches, tmp_path)


def load_in_4_bits(plain: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with weights in 4 bits; `plain` gets the weights that these stand for."""
    dequantise = pytest.importorskip("bitsandbytes.functional").dequantize_4bit
    plain.save_pretrained(folder)
    manifest = {
        "path": str(folder),
        "source": "x",
        "dtype": "float32",
        "trust_remote_code": False,
    }
    quantised = load_quantised(manifest, "4bit")
    dtypes = {weight.dtype for weight in quantised.parameters()}
    assert dtypes == {torch.float32, torch.uint8}
    for name, module in quantised.named_modules():
        if type(module).__name__ == "Linear4bit":
            weight = dequantise(module.weight.data, module.weight.quant_state)
            plain.get_submodule(name).weight.data = weight
    return quantised


def test_training_with_4_bit_weights_is_training_with_their_dequantised_values(
    tmp_path: Path,
) -> None:
    """QLoRA, as config/papers/deeper-layers.yaml has it, in small and with the real library."""
    # Whole blocks of weights, except for the second map of the MLP.
    plain = tiny.model(hidden_size=64, intermediate_size=160)
    quantised = load_in_4_bits(plain, tmp_path / "model")
    plan = {"units": ["2"]}
    sources = [TrainingSource(make_samples())]
    losses: dict[str, list[float]] = {}
    for quantise, base in (("none", plain), ("4bit", quantised)):
        options = Lora(**{**FAST_OPTIONS, "quantise": quantise})
        healed, rows = lora.heal(base, plan, None, sources, options)
        lora.save(healed, tmp_path / quantise)
        merged = materialise(plain, plan, None, tmp_path / quantise)
        _, validation_sources = split_sources(sources, options.seed)
        objective = Objective("lm", merged, merged)
        merged_loss = training.measure_validation_loss(objective, validation_sources, 1000)
        losses[quantise] = [*validation_losses(rows), merged_loss]
    first_loss, *later_losses = losses["4bit"][:-1]
    assert min(later_losses) < 0.95 * first_loss
    assert losses["4bit"] == pytest.approx(losses["none"], rel=0.03)


def mixture_steps() -> list[OptimiserStep]:
    """Ten epochs on 60 questions, and on 400 texts with a tenth of their weight.

    The indices of the texts start at 60.
    """
    own_samples = make_samples(60)
    texts = make_samples(460, "text")[60:]
    sources = [TrainingSource(own_samples, 2.0), TrainingSource(texts, 0.2)]
    return list(plan_steps(sources, Lora(epochs=10, batch=20)))


def test_a_mixture_draws_samples_by_their_weight() -> None:
    n_draws: Counter[int] = Counter()
    for step in mixture_steps():
        for group in step.sample_groups:
            n_draws.update(sample.index for sample in group)
    own_draws = {index: count for index, count in n_draws.items() if index < 60}
    text_draws = {index: count for index, count in n_draws.items() if index >= 60}
    assert own_draws == dict.fromkeys(range(60), 10)  # each once an epoch
    assert sum(text_draws.values()) == 10 * 40
    assert len(text_draws) > 200  # other ones in each epoch


def test_a_batch_of_a_mixture_holds_both_sources_each_padded_on_its_own() -> None:
    steps = mixture_steps()
    assert [step.ends_epoch for step in steps] == [False, False, False, False, True] * 10
    assert sum(len(step.sample_groups) == 2 for step in steps) > 40
    for step in steps:
        for group in step.sample_groups:
            assert len({sample.kind for sample in group}) == 1

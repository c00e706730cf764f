"""Which parts a healing trains: they alone change, and come back in every form that a variant has."""

from pathlib import Path

import pytest
import torch
from transformers import dynamic_module_utils

from lamina.errors import LaminaError
from lamina.healing import lora, training
from lamina.healing.lora import Lora
from lamina.healing.objectives import Objective
from lamina.healing.training import Source
from lamina.models.boundary import Patch
from lamina.models.export import save as export
from lamina.models.export.modeling_lamina import Patched
from lamina.models.load import load_folder, load_quantised
from lamina.models.materialise import materialise
from lamina.repair.protocol import Fitted
from tests.families.test_families import base_folder, source_of
from tests.given import tiny
from tests.healing.test_lora import FAST, samples

UNITS = ["1", "2", "4"]
PARTS = {"patch_operator", "patch_bias", "patch_down", "patch_up"}


def fitted() -> dict[tuple[int, int], Fitted]:
    """Patches as a repair leaves them, at a layer with a bias and at the final norm as two factors."""
    draw = torch.Generator().manual_seed(5)
    one, down, up = (
        torch.randn(shape, generator=draw) / 20 for shape in ((32, 32), (32, 6), (6, 32))
    )
    bias = torch.randn(32, generator=draw) / 10
    return {
        (1, 3): Fitted("ghost", {"operator": one / 3, "bias": bias}),
        (4, 5): Fitted("ghost", {"down": down, "up": up}),
    }


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "phi3", "bloom", "opt"])
def test_adapters_and_patches_survive_every_form(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    base, ids, plan = tiny.model(family), tiny.tokens(), {"units": UNITS}
    before = [parameter.clone() for parameter in base.parameters()]
    options = Lora(**{**FAST, "epochs": 1, "max_steps": 3, "train": "both", "targets": "all"})
    healed, _ = lora.heal(base, plan, fitted(), [Source(samples(12))], options)
    # Whatever the validation says.
    for number, weight in enumerate(healed.weights.values()):
        draw = torch.Generator().manual_seed(number)
        weight.data += torch.randn(weight.shape, generator=draw) / 20
    kinds = {name.split(".lora_")[0].split(".")[-1] for name in healed.weights}
    assert kinds >= PARTS and len(kinds) >= 7
    lora.save(healed, tmp_path / "adapter")
    with torch.no_grad():
        wanted = healed.model(input_ids=ids).logits
        saved = materialise(base, plan, fitted(), tmp_path / "adapter")
        torch.testing.assert_close(saved(input_ids=ids).logits, wanted, atol=2e-4, rtol=2e-4)
        unhealed = materialise(base, plan, fitted())(input_ids=ids).logits
        assert not torch.allclose(unhealed, wanted, atol=1e-2)
        source = source_of(base_folder(tmp_path / "base"), UNITS)
        form = export.export(base, source, tmp_path / "export", fitted(), tmp_path / "adapter")
        again = load_folder(tmp_path / "export", "auto", trust_remote_code=True)
        torch.testing.assert_close(
            again(input_ids=ids).logits, saved(input_ids=ids).logits, atol=1e-5, rtol=1e-5
        )
    assert form == "code" and all(map(torch.equal, base.parameters(), before))
    assert all(parameter.requires_grad for parameter in base.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_patches_train_from_their_closed_form_and_nothing_else_changes(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    base, plan = tiny.model().to(dtype), {"units": UNITS}
    options = Lora(**{**FAST, "train": "patch", "objective": "distill", "learning_rate": 1e-3})
    healed, rows = lora.heal(base, plan, fitted(), [Source(samples(48, "text"))], options)
    losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert min(losses) < 0.98 * losses[0]
    assert {name.rsplit(".", 1)[1] for name in healed.weights} == PARTS
    lora.save(healed, tmp_path)
    saved, bare = materialise(base, plan, fitted(), tmp_path), materialise(base, plan, fitted())
    assert all(
        mine is theirs for mine, theirs in zip(saved.parameters(), bare.parameters(), strict=True)
    )
    for mine, closed in zip(saved.modules(), bare.modules(), strict=True):
        if isinstance(mine, Patched) and isinstance(closed, Patched):
            for name, part in closed.patch_parts.items():
                assert 0 < (mine.patch_parts[name] - part).norm() < part.norm()
                assert mine.patch_parts[name].dtype == part.dtype
    # What was validated is what is benchmarked, before training and after.
    _, held = training.split([Source(samples(48, "text"))], options.seed)
    (chosen,) = (row for row in rows if row["chosen"])
    for model, row in ((bare, rows[0]), (saved, chosen)):
        found = training.validate(Objective("distill", model, base), held, 100_000)
        assert found == row["validation_loss"]


def test_the_teacher_is_the_unpruned_model_with_no_copy_of_a_weight() -> None:
    base, ids = tiny.model(), tiny.tokens()
    with torch.no_grad():
        expected = base(input_ids=ids).logits
    variant = materialise(base, {"units": ["2"]})
    healed = lora.trainable(variant, Lora(targets="all"))
    for weight in healed.weights.values():
        weight.data.normal_(generator=torch.Generator().manual_seed(0))
    held = {id(parameter) for parameter in base.parameters()}
    own = [name for name, parameter in variant.named_parameters() if id(parameter) not in held]
    assert set(own) == set(healed.weights)
    with torch.no_grad():
        assert torch.equal(base(input_ids=ids).logits, expected)
        assert not torch.allclose(variant(input_ids=ids).logits, expected, atol=1)


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    base, data = tiny.model(), [Source(samples())]
    folded = {(2, 3): Fitted("replaceme", {"operator": torch.zeros(32, 32)})}
    for patches in (None, folded):
        with pytest.raises(LaminaError, match="train: patch.*repair none.*ghost or linearpatch"):
            lora.heal(base, {"units": ["2"]}, patches, data, Lora(**{**FAST, "train": "patch"}))
    with pytest.raises(LaminaError, match="lm\\+hidden.*halves"):
        lora.heal(
            base, {"units": ["2.mlp"]}, None, data, Lora(**{**FAST, "objective": "lm+hidden"})
        )
    healed, _ = lora.heal(
        base, {"units": UNITS}, fitted(), data, Lora(**{**FAST, "train": "patch", "epochs": 1})
    )
    lora.save(healed, tmp_path)
    for units, patches in ((UNITS, None), (["2"], {(2, 3): Patch(torch.zeros(32, 32))})):
        with pytest.raises(LaminaError, match="another variant"):
            materialise(base, {"units": units}, patches, tmp_path)


def test_training_beside_weights_in_4_bits_is_training_beside_what_they_stand_for(
    tmp_path: Path,
) -> None:
    """QLoRA, as config/papers/deeper-layers.yaml has it, in small and with the real library."""
    dequantised = pytest.importorskip("bitsandbytes.functional").dequantize_4bit
    plain = tiny.model(
        hidden_size=64, intermediate_size=160
    )  # whole blocks, but for the second map of the MLP
    plain.save_pretrained(tmp_path / "model")
    manifest = {
        "path": str(tmp_path / "model"),
        "source": "x",
        "dtype": "float32",
        "trust_remote_code": False,
    }
    small = load_quantised(manifest, "4bit")
    assert {str(weight.dtype) for weight in small.parameters()} == {"torch.float32", "torch.uint8"}
    for name, module in small.named_modules():
        if type(module).__name__ == "Linear4bit":
            plain.get_submodule(name).weight.data = dequantised(
                module.weight.data, module.weight.quant_state
            )
    plan, losses = {"units": ["2"]}, {}
    for quantise, base in (("none", plain), ("4bit", small)):
        healed, rows = lora.heal(
            base, plan, None, [Source(samples())], Lora(**{**FAST, "quantise": quantise})
        )
        lora.save(healed, tmp_path / quantise)
        losses[quantise] = [
            row["validation_loss"] for row in rows if row.get("validation_loss") is not None
        ]
        merged = materialise(plain, plan, None, tmp_path / quantise)
        _, held = training.split([Source(samples())], 0)
        losses[quantise].append(training.validate(Objective("lm", merged, merged), held, 1000))
    assert min(losses["4bit"][:-1]) < 0.95 * losses["4bit"][0], "it learns"
    assert losses["4bit"] == pytest.approx(losses["none"], rel=0.03)


def test_a_mixture_draws_scored_tokens_by_their_weight() -> None:
    own, added = samples(60), samples(460, "text")[60:]
    sources = [Source(own, 2.0), Source(added, 0.2)]
    steps = list(training._steps(sources, Lora(epochs=10, batch=20)))
    drawn = [sample.index for step in steps for group in step.groups for sample in group]
    # All of the own, a tenth of the 400 others in each pass; over ten passes other ones each time.
    assert sum(index < 60 for index in drawn) == 600 and sum(index >= 60 for index in drawn) == 400
    assert (
        all(drawn.count(index) == 10 for index in range(60))
        and len({index for index in drawn if index >= 60}) > 200
    )
    assert (
        len(steps) == 50
        and [step.last for step in steps] == [False, False, False, False, True] * 10
    )
    # A batch holds both, each padded apart.
    assert sum(len(step.groups) == 2 for step in steps) > 40
    assert all(
        len({sample.kind for sample in group}) == 1 for step in steps for group in step.groups
    )

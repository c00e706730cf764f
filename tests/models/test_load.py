"""`lamina.load` gives everything that it can name, against variants built from their parts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.errors import LaminaError
from lamina.models.boundary import Patch
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.repairs import patch
from lamina.store import parquet
from tests.given import tiny
from tests.given.variants import base_folder, compute_logits, plan_of, random_adapter

SELECTOR = "tiny/words/cosine"
UNITS = ["1", "2"]
HEALED = f"{SELECTOR}/removed=2/ghost/lora"
OPERATOR = torch.randn(32, 32, generator=torch.Generator().manual_seed(5)) / 10


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder as the workflow leaves it: a base model, a plan, a patch and an adapter."""
    folder = base_folder(tmp_path / "base")
    base = tiny.model()
    base.save_pretrained(folder)
    manifest = {
        "path": str(folder),
        "source": str(folder),
        "dtype": "float32",
        "trust_remote_code": False,
    }
    results = tmp_path / "results"
    parquet.write_text(results / "models/tiny/manifest.json", json.dumps(manifest))
    plan = results / f"plans/{SELECTOR}/removed=2.json"
    parquet.write_text(plan, json.dumps(plan_of(UNITS)))
    tensors = patch.name_tensors(2, {(1, 3): {"operator": OPERATOR}})
    patch.write_patch(results / f"patches/{SELECTOR}/ghost.safetensors", "ghost", tensors)
    random_adapter(base, UNITS, results / f"adapters/{HEALED}")
    curve = results / f"adapters/{HEALED}/training.parquet"
    parquet.write_table(curve, parquet.from_rows("training", []))
    return results


def test_a_wrong_name_is_no_attribute_of_lamina() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        lamina.lood  # noqa: B018


def test_a_variant_is_loaded_by_its_name(results: Path) -> None:
    token_ids = tiny.tokens()
    adapter = results / f"adapters/{HEALED}"
    variant = materialise(tiny.model(), plan_of(UNITS), {(1, 3): Patch(OPERATOR)}, adapter)

    model, tokenizer = lamina.load(HEALED, results, device="cpu")

    torch.testing.assert_close(compute_logits(model, token_ids), compute_logits(variant, token_ids))
    assert tokenizer("w1 w2")["input_ids"] == tiny.tokenizer()("w1 w2")["input_ids"]


def test_a_base_model_is_loaded_by_its_name(results: Path) -> None:
    token_ids = tiny.tokens()
    model, _ = lamina.load("tiny", results, device="cpu")
    assert torch.equal(compute_logits(model, token_ids), compute_logits(tiny.model(), token_ids))


def test_a_device_map_is_applied_after_the_surgery(results: Path) -> None:
    token_ids = tiny.tokens()
    mapped, _ = lamina.load(HEALED, results, device_map={"": "cpu"})
    assert mapped.hf_device_map == {"": "cpu"}
    model, _ = lamina.load(HEALED, results, device="cpu")
    torch.testing.assert_close(compute_logits(mapped, token_ids), compute_logits(model, token_ids))


def test_saving_a_loaded_variant_keeps_its_patch(results: Path, tmp_path: Path) -> None:
    token_ids = tiny.tokens()
    model, _ = lamina.load(f"{SELECTOR}/removed=2/ghost/none", results, device="cpu")
    model.save_pretrained(tmp_path / "saved")

    reloaded = load_folder(tmp_path / "saved", "auto", trust_remote_code=True)
    torch.testing.assert_close(
        compute_logits(reloaded, token_ids), compute_logits(model, token_ids)
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "neither a folder with config.json nor known"),
        (f"{SELECTOR}/2/ghost/none", {}, "removed=n"),
        (
            f"{SELECTOR}/removed=3/none/none",
            {},
            f"lamina export {SELECTOR}/removed=3/none/none",
        ),
        (f"{SELECTOR}/removed=2/none/long", {}, "has not been made"),
        ("tiny/words/cosin/removed=2/none/none", {}, "Did you mean 'cosine'"),
        (f"{SELECTOR}/removed=2/gost/none", {}, "Did you mean 'ghost'"),
        ("tiny", {"dtype": "float8"}, "dtype: 'float8'"),
        ("tiny", {"device": "cpu", "device_map": "auto"}, "not both"),
    ],
)
def test_what_cannot_be_loaded_is_explained(
    results: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        lamina.load(name, results, **options)


def test_a_healing_that_did_not_end_is_not_loaded(results: Path) -> None:
    """The training curve is written last."""
    folder = results / "adapters/tiny/words/cosine/removed=2/none/stopped"
    folder.mkdir(parents=True)

    with pytest.raises(LaminaError, match=r"stopped/training\.parquet does not exist"):
        lamina.load(f"{SELECTOR}/removed=2/none/stopped", results)


def test_weights_in_four_bits_are_near_those_of_the_folder(tmp_path: Path) -> None:
    """Each is within half a step of its block; the CPU takes no rows that end within a block."""
    dequantize_4bit = pytest.importorskip("bitsandbytes.functional").dequantize_4bit
    folder = base_folder(tmp_path / "base")
    tiny.model(hidden_size=64, intermediate_size=160).save_pretrained(folder)

    full, _ = lamina.load(folder, dtype="float32")
    quantised, _ = lamina.load(folder, dtype="float32", load_in_4bit=True)

    for name, module in quantised.named_modules():
        if type(module).__name__ != "Linear4bit":
            continue
        weight = full.get_submodule(name).weight
        dequantised = dequantize_4bit(module.weight.data, module.weight.quant_state)
        errors = (dequantised.to(weight.device) - weight).reshape(-1, 64).abs()
        block_maxima = weight.reshape(-1, 64).abs().amax(1, keepdim=True)
        assert (errors <= block_maxima / 6 + 1e-6).all(), name
    mlp = layers_of(quantised)[0].mlp
    assert type(mlp.up_proj).__name__ == "Linear4bit"
    assert type(quantised.lm_head).__name__ == "Linear"
    if quantised.device.type == "cpu":
        assert type(mlp.down_proj).__name__ == "Linear"
    assert quantised(tiny.tokens().to(quantised.device)).logits.isfinite().all()

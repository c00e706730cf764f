"""Exports of models whose layers run again or in another order, against models made by hand."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, dynamic_module_utils

import lamina
from lamina.errors import LaminaError
from lamina.models.export import save
from tests.given import tiny
from tests.given.edited_models import hold_path
from tests.given.variants import base_folder, compute_logits, source_of

TOKEN_IDS = torch.arange(3, 43).reshape(2, 20)


@pytest.fixture(autouse=True)
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of exports is copied here before it is imported, and not into the user's cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def test_an_export_is_a_stock_checkpoint_with_copied_layers(tmp_path: Path) -> None:
    """Of a model whose layers alternate between full and sliding attention."""
    base = tiny.model("gemma3_text")
    source = source_of(base_folder(tmp_path / "base"), ["1-2x2", "0<>4"])

    form = save.export_variant(base, source, tmp_path / "export")

    assert form == "stock"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert loaded.config.num_hidden_layers == 7
    kinds = base.config.layer_types
    assert loaded.config.layer_types == [kinds[layer] for layer in (4, 1, 2, 1, 2, 3, 0)]
    held = hold_path(base, [4, 1, 2, 1, 2, 3, 0])
    torch.testing.assert_close(compute_logits(loaded, TOKEN_IDS), compute_logits(held, TOKEN_IDS))

    card = (tmp_path / "export/README.md").read_text()
    assert "The model runs layers 1 to 2 twice, exchanges layers 0 and 4." in card
    assert "with 2 layers more" in card
    assert "with 7 layers instead of 5" in card
    n_parameters = loaded.num_parameters()
    assert f"{n_parameters:,} parameters instead of {base.num_parameters():,}" in card


def test_damped_layers_are_exported_with_code(tmp_path: Path) -> None:
    base = tiny.model()
    source = source_of(base_folder(tmp_path / "base"), ["1-2x2~", "3x3~"])

    form = save.export_variant(base, source, tmp_path / "export")

    assert form == "code"
    loaded, _ = lamina.load(tmp_path / "export", device="cpu")
    twice = {range(1, 3): 2, range(3, 5): 2}
    three_times = {range(5, 6): 3, range(6, 7): 3, range(7, 8): 3}
    held = hold_path(base, [0, 1, 2, 1, 2, 3, 3, 3, 4], twice | three_times)
    found_logits = compute_logits(loaded, TOKEN_IDS)
    torch.testing.assert_close(found_logits, compute_logits(held, TOKEN_IDS))
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "export", trust_remote_code=False)


def test_a_gguf_file_has_no_place_for_damped_layers(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1x2~"])
    gguf_entries = {"source": "tiny.gguf", "revision": None}
    gguf_source = save.BaseSource(source.variant, {**source.manifest, **gguf_entries}, source.plan)
    with pytest.raises(LaminaError, match="no place for damped layers"):
        save.export_variant(tiny.model(), gguf_source, tmp_path / "export", form="gguf")

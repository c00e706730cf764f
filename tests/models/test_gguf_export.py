"""A variant as a GGUF file has the bits of the base model's file, and no more than a cut."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.dequantise import read_model
from lamina.models.export import gguf_file, save
from lamina.models.export.card import BaseSource
from lamina.models.export.check import check_export
from tests.given import gguf_files, tiny
from tests.given.variants import base_folder, compute_logits, source_of

KEPT_LAYERS = [0, 2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The GGUF file of the base model."""
    gguf_files.write(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def read_file(file: Path) -> PreTrainedModel:
    return read_model(file, "auto", "source")


def cut_source(file: Path, units: list[str], **methods: str) -> BaseSource:
    """A variant of the model in a GGUF file."""
    source = source_of(base_folder(file.parent / "base"), units, **methods)
    gguf_entries = {"source": str(file), "revision": None, "dtype": "float32"}
    return BaseSource(source.variant, {**source.manifest, **gguf_entries}, source.plan)


def read_settings(file: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, field in GGUFReader(file).fields.items():
        if not name.startswith("GGUF."):
            settings[name] = field.contents()
    return settings


def read_tensors(file: Path) -> dict[str, tuple[int, bytes]]:
    """The number format and the bits of each tensor."""
    tensors: dict[str, tuple[int, bytes]] = {}
    for tensor in GGUFReader(file).tensors:
        tensors[tensor.name] = (tensor.tensor_type, tensor.data.tobytes())
    return tensors


def test_the_file_holds_the_bits_of_the_base_without_the_removed_layer(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    form = save.export_variant(read_file(file), cut_source(file, ["1"]), folder, form="gguf")

    assert form == "gguf"
    assert {path.name for path in folder.iterdir()} == {"model.gguf", "README.md", "lamina.json"}
    expected_tensors: dict[str, tuple[int, bytes]] = {}
    for name, content in read_tensors(file).items():
        if not name.startswith("blk.1."):
            expected_tensors[name.replace("blk.2.", "blk.1.")] = content
    assert read_tensors(folder / "model.gguf") == expected_tensors
    expected_settings = read_settings(file) | {"llama.block_count": 2}
    assert read_settings(folder / "model.gguf") == expected_settings


def test_the_file_is_the_model_whose_layer_was_taken_out_by_hand(tmp_path: Path) -> None:
    original = gguf_files.write(tmp_path / "tiny.gguf")
    del original.model.layers[1]
    original.model.layers[1].self_attn.layer_idx = 1

    gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "cut.gguf", KEPT_LAYERS)

    token_ids = torch.arange(3, 43).reshape(2, 20)
    found_logits = compute_logits(read_file(tmp_path / "cut.gguf"), token_ids)
    expected_logits = compute_logits(original, token_ids)
    torch.testing.assert_close(found_logits, expected_logits, rtol=1e-4, atol=1e-4)


def test_layers_that_run_again_or_elsewhere_are_copied_with_their_bits(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    source = cut_source(file, ["0<>2", "1x2"])
    form = save.export_variant(read_file(file), source, folder, form="gguf")

    assert form == "gguf"
    base_tensors = read_tensors(file)
    tensors = read_tensors(folder / "model.gguf")
    for position, layer in enumerate((2, 1, 1, 0)):
        prefix = f"blk.{layer}."
        for name in base_tensors:
            if name.startswith(prefix):
                copied_name = f"blk.{position}.{name.removeprefix(prefix)}"
                assert tensors[copied_name] == base_tensors[name]
    assert read_settings(folder / "model.gguf")["llama.block_count"] == 4


def test_the_card_says_what_loads_the_file(file: Path, tmp_path: Path) -> None:
    source = cut_source(file, ["1"])
    save.export_variant(read_file(file), source, tmp_path / "export", form="gguf")
    card = (tmp_path / "export/README.md").read_text()
    assert "# tiny.gguf without 1 layer\n" in card
    assert "llama-cli -m FOLDER/model.gguf" in card
    assert 'gguf_file="model.gguf"' in card
    assert "prune-layers" not in card
    assert "vllm" not in card


def test_the_card_of_a_checkpoint_says_how_much_larger_it_is_than_the_file(
    file: Path, tmp_path: Path
) -> None:
    source = cut_source(file, ["1"])
    folder = tmp_path / "export"
    save.export_variant(read_file(file), source, folder)

    card = (folder / "README.md").read_text()
    checkpoint_mb = (folder / "model.safetensors").stat().st_size / 1e6
    file_mb = file.stat().st_size / 1e6
    assert f"The weights take {checkpoint_mb:.1f} MB." in card
    assert f"tiny.gguf packs the base model into {file_mb:.1f} MB, and" in card
    assert f"lamina export {source.variant} --form gguf" in card
    assert "prune-layers" not in card


def test_a_file_that_is_gone_loses_no_export(file: Path, tmp_path: Path) -> None:
    base = read_file(file)
    source = cut_source(file, ["1"])
    file.unlink()

    form = save.export_variant(base, source, tmp_path / "export")

    assert form == "stock"
    assert "packs the base model" not in (tmp_path / "export/README.md").read_text()


def test_lists_by_layer_are_cut_and_other_lists_are_not(tmp_path: Path) -> None:
    settings = {
        "llama.feed_forward_length": [5, 6, 7],
        "llama.flags": [True, False, True],
        "llama.rope.sections": [1, 2],
        "general.tags": ["a", "b", "c"],
    }
    gguf_files.write(tmp_path / "tiny.gguf", extra_fields=settings)

    gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "cut.gguf", KEPT_LAYERS)

    cut_settings = read_settings(tmp_path / "cut.gguf")
    assert cut_settings["llama.feed_forward_length"] == [5, 7]
    assert cut_settings["llama.flags"] == [True, True]
    assert cut_settings["llama.rope.sections"] == [1, 2]
    assert cut_settings["general.tags"] == ["a", "b", "c"]
    assert cut_settings["tokenizer.ggml.tokens"] == gguf_files.TOKENS


def test_tensors_keep_their_number_format(tmp_path: Path) -> None:
    bias = np.ones(3, np.float16)
    gguf_files.write(tmp_path / "tiny.gguf", extra_fields={"x.bias": bias})
    gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "cut.gguf", KEPT_LAYERS)
    assert GGUFReader(tmp_path / "cut.gguf").tensors[-1].data.dtype == np.float16


def test_shards_become_one_file_without_the_removed_layers(file: Path, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "shards.gguf", n_shards=3)
    first_shard = sorted(tmp_path.glob("shards-*"))[0]
    gguf_file.copy_layers(first_shard, tmp_path / "cut.gguf", KEPT_LAYERS)
    gguf_file.copy_layers(file, tmp_path / "expected.gguf", KEPT_LAYERS)
    assert read_settings(tmp_path / "cut.gguf") == read_settings(tmp_path / "expected.gguf")
    assert read_tensors(tmp_path / "cut.gguf") == read_tensors(tmp_path / "expected.gguf")


@pytest.mark.parametrize(
    ("units", "methods", "message"),
    [
        (["1"], {"repair": "ghost"}, "quantised again. Leave --form out"),
        (["1"], {"healing": "lora"}, "quantised again. Leave --form out"),
        (["1.mlp"], {}, "no place for half a layer"),
    ],
)
def test_a_variant_that_is_not_layers_taken_out_is_refused(
    file: Path, tmp_path: Path, units: list[str], methods: dict[str, str], message: str
) -> None:
    source = cut_source(file, units, **methods)
    with pytest.raises(LaminaError, match=message):
        save.export_variant(read_file(file), source, tmp_path / "export", form="gguf")
    assert not (tmp_path / "export").exists()


def test_a_checkpoint_is_not_exported_as_a_gguf_file(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    with pytest.raises(LaminaError, match="not a GGUF file.*convert_hf_to_gguf"):
        save.export_variant(tiny.model(), source, tmp_path / "export", form="gguf")


def test_a_cut_that_shifts_the_pattern_of_layers_is_refused(tmp_path: Path) -> None:
    base = tiny.model("gemma3_text")
    with pytest.raises(LaminaError, match="this cut shifts the pattern"):
        gguf_file.save_gguf(base, base, [0, 2, 3], tmp_path / "tiny.gguf", tmp_path / "export")


@pytest.mark.parametrize("kept_layers", [[0, 2], [0, 2, 1]], ids=["too few", "out of order"])
def test_a_file_that_is_another_model_is_refused(
    file: Path, tmp_path: Path, kept_layers: list[int]
) -> None:
    base = read_file(file)
    gguf_file.copy_layers(file, tmp_path / "other.gguf", kept_layers)
    with pytest.raises(LaminaError, match="does not load back as the same model"):
        check_export(base, base, lambda: read_file(tmp_path / "other.gguf"))

"""A variant as a GGUF file: the base model's own bits, and nothing that this form has no place for."""

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
from lamina.models.export.check import check_export
from tests.families.test_families import base_folder, source_of
from tests.given import gguf_files, tiny

DEPTH = gguf_files.LAYERS
KEPT = [0, 2]


def given(
    tmp_path: Path, units: list[str], **names: str
) -> tuple[PreTrainedModel, save.BaseSource]:
    """The model of a GGUF file as lamina reads it, and a variant of it."""
    gguf_files.write(tmp_path / "tiny.gguf")
    source = source_of(base_folder(tmp_path / "base"), units, **names)
    manifest = {
        **source.manifest,
        "source": str(tmp_path / "tiny.gguf"),
        "revision": None,
        "dtype": "float32",
    }
    base = read_model(tmp_path / "tiny.gguf", "auto", "source")
    return base, save.BaseSource(source.variant, manifest, source.plan)


def values(reader: GGUFReader) -> dict[str, Any]:
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }


def test_the_file_holds_the_bits_of_the_base_and_is_the_cut_model(tmp_path: Path) -> None:
    base, source = given(tmp_path, ["1"])
    assert save.export_variant(base, source, tmp_path / "export", form="gguf") == "gguf"
    assert {file.name for file in (tmp_path / "export").iterdir()} == {
        "model.gguf",
        "README.md",
        "lamina.json",
    }
    before, after = GGUFReader(tmp_path / "tiny.gguf"), GGUFReader(tmp_path / "export/model.gguf")
    left = {tensor.name: tensor for tensor in after.tensors}
    renamed = {f"blk.{old}.": f"blk.{new}." for new, old in enumerate(KEPT)}
    for tensor in before.tensors:
        start = tensor.name[: len("blk.0.")] if tensor.name.startswith("blk.") else ""
        if start != "blk.1.":
            twin = left.pop(renamed.get(start, "") + tensor.name[len(start) :])
            assert (
                twin.tensor_type == tensor.tensor_type
                and twin.data.tobytes() == tensor.data.tobytes()
            )
    assert not left
    assert values(after) == values(before) | {"llama.block_count": len(KEPT)}
    # Against layers taken out by hand from the model that the writer of the file has.
    wanted = gguf_files.write(tmp_path / "again.gguf")
    del wanted.model.layers[1]
    wanted.model.layers[1].self_attn.layer_idx = 1
    ids = torch.arange(3, 43).reshape(2, 20)
    found = read_model(tmp_path / "export/model.gguf", "auto", "source")
    with torch.no_grad():
        torch.testing.assert_close(
            found(ids).logits, wanted(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4
        )


def test_its_card_says_what_loads_it_and_that_of_a_checkpoint_what_it_costs(tmp_path: Path) -> None:
    base, source = given(tmp_path, ["1"])
    save.export_variant(base, source, tmp_path / "file", form="gguf")
    save.export_variant(base, source, tmp_path / "floats")
    file, floats = ((tmp_path / name / "README.md").read_text() for name in ("file", "floats"))
    assert "# tiny.gguf without 1 layer\n" in file and "llama-cli -m FOLDER/model.gguf" in file
    assert 'gguf_file="model.gguf"' in file and "prune-layers" not in file and "vllm" not in file
    sizes = [
        (tmp_path / name).stat().st_size / 1e6 for name in ("floats/model.safetensors", "tiny.gguf")
    ]
    assert "take {:.1f} MB, the GGUF file of the base model {:.1f} MB".format(*sizes) in floats
    assert (
        "dtype: bfloat16" in floats and f"make export VARIANT={source.variant} FORM=gguf" in floats
    )
    assert "prune-layers" not in floats
    assert "tiny.gguf" not in (tmp_path / "floats/mergekit.yaml").read_text()


def test_lists_by_layer_are_cut_and_other_lists_are_not(tmp_path: Path) -> None:
    more = {
        "llama.feed_forward_length": [5, 6, 7],
        "llama.rope.sections": [1, 2],
        "general.tags": ["a", "b", "c"],
    }
    gguf_files.write(tmp_path / "tiny.gguf", extra_fields=more)
    gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "cut.gguf", KEPT)
    found = values(GGUFReader(tmp_path / "cut.gguf"))
    assert found["llama.feed_forward_length"] == [5, 7]
    assert (found["llama.rope.sections"], found["general.tags"]) == ([1, 2], ["a", "b", "c"])


def test_shards_become_one_file_without_the_removed_layers(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", n_shards=3)
    gguf_files.write(tmp_path / "whole.gguf")
    gguf_file.copy_layers(sorted(tmp_path.glob("tiny-*"))[0], tmp_path / "cut.gguf", KEPT)
    gguf_file.copy_layers(tmp_path / "whole.gguf", tmp_path / "expected.gguf", KEPT)
    found, expected = (GGUFReader(tmp_path / name) for name in ("cut.gguf", "expected.gguf"))
    assert values(found) == values(expected)
    tensors = {tensor.name: tensor.data.tobytes() for tensor in found.tensors}
    assert tensors == {tensor.name: tensor.data.tobytes() for tensor in expected.tensors}


@pytest.mark.parametrize(
    ("units", "names", "words"),
    [
        (["1"], {"repair": "ghost"}, "quantised anew. Leave FORM out"),
        (["1"], {"healing": "lora"}, "quantised anew. Leave FORM out"),
        (["1.mlp"], {}, "no place for half a layer"),
    ],
)
def test_what_is_no_cut_is_refused(
    tmp_path: Path, units: list[str], names: dict[str, str], words: str
) -> None:
    base, source = given(tmp_path, units, **names)
    with pytest.raises(LaminaError, match=words):
        save.export_variant(base, source, tmp_path / "export", form="gguf")
    assert not (tmp_path / "export").exists()


def test_a_checkpoint_and_a_pattern_that_the_cut_shifts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="no GGUF file.*convert_hf_to_gguf"):
        source = source_of(base_folder(tmp_path / "base"), ["1"])
        save.export_variant(tiny.model(), source, tmp_path / "export", form="gguf")
    base = tiny.model("gemma3_text")
    with pytest.raises(LaminaError, match="this cut shifts the pattern"):
        gguf_file.save_gguf(base, base, [0, 2, 3], tmp_path / "tiny.gguf", tmp_path / "export")


def test_a_file_that_is_another_model_is_refused(tmp_path: Path) -> None:
    """The check sees a layer too few, and the same layers in another order."""
    base, _ = given(tmp_path, ["1"])
    for kept in ([0, 2], [0, 2, 1]):
        gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "other.gguf", kept)
        with pytest.raises(LaminaError, match="does not load back as the same model"):
            check_export(base, base, lambda: read_model(tmp_path / "other.gguf", "auto", "source"))


def test_numbers_that_are_no_floats_survive(tmp_path: Path) -> None:
    """A list of texts and one of flags keep their types."""
    gguf_files.write(
        tmp_path / "tiny.gguf",
        extra_fields={"llama.flags": [True, False, True], "x.bias": np.ones(3, np.float16)},
    )
    gguf_file.copy_layers(tmp_path / "tiny.gguf", tmp_path / "cut.gguf", KEPT)
    reader = GGUFReader(tmp_path / "cut.gguf")
    assert reader.fields["llama.flags"].contents() == [True, True]
    assert reader.fields["tokenizer.ggml.tokens"].contents() == gguf_files.TOKENS
    assert reader.tensors[-1].data.dtype == np.float16

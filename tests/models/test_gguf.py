"""A model that is a GGUF file: the same numbers, the same tokens, and nothing lost without a word."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.checks.load import load
from lamina.config.models import Model
from lamina.errors import LaminaError
from lamina.models import gguf
from lamina.models.dequantise import dequantise
from lamina.models.manifest import describe
from tests.given import gguf_files
from tests.given.configurations import minimal, put, workplace

TEXTS = [
    "the inn in the the",
    "12 and 120, 1 2",
    "a\n\n12. the",
    "  12   in",
    "x  \n\n\n 7",
    "it's the 12th\t3½",
    "<|im_start|>user\nin<|im_end|>\n",
    "naïve ✓ 中文 ١٢",
    "",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module, Path]:
    """A file, the model that it holds, and the folder that it became."""
    place = tmp_path_factory.mktemp("gguf")
    model = gguf_files.write(place / "tiny.gguf")
    dequantise(place / "tiny.gguf", place / "checkpoint")
    return place / "tiny.gguf", model, place / "checkpoint"


def test_the_weights_are_those_that_quantising_left(
    made: tuple[Path, torch.nn.Module, Path],
) -> None:
    _, model, folder = made
    found, wanted = load_file(folder / "model.safetensors"), model.state_dict()
    assert found.keys() == wanted.keys() - {"lm_head.weight"}
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-6)
    # They are not the ones before: quantising is no formality here.
    before = gguf_files.original().state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert (found["model.layers.0.mlp.up_proj.weight"] - before).abs().max() > 0.01


def test_it_is_an_ordinary_checkpoint_that_says_the_same(
    made: tuple[Path, torch.nn.Module, Path],
) -> None:
    _, model, folder = made
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    loaded = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    ids = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    manifest = describe("tiny", Model(source="tiny.gguf"), folder)
    assert (manifest["n_layers"], manifest["family"]) == (gguf_files.LAYERS, "llama")
    assert manifest["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_its_tokenizer_is_the_true_one(made: tuple[Path, torch.nn.Module, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made[2])
    for text in TEXTS:
        wanted = gguf_files.true_tokenizer().encode(text)
        assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == wanted.tokens
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=False) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    talk = tokenizer.apply_chat_template([{"role": "user", "content": "in"}], tokenize=False)
    assert talk == "<|im_start|>user\nin<|im_end|>\n"
    assert set(tokenizer.all_special_tokens) == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("cut", "more", "words"),
    [
        ("own-way", {}, "cuts text in the way 'own-way', which is not known here"),
        (
            "smollm",
            {"llama.rope.scaling.factor": 8.0},
            "settings that would be lost (rope.scaling.factor)",
        ),
        (
            "smollm",
            {"rope_freqs.weight": np.ones(8, np.float32)},
            "no place in it: rope_freqs.weight",
        ),
    ],
)
def test_what_would_be_lost_is_refused(tmp_path: Path, cut: str, more: dict, words: str) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", cut=cut, more=more)
    with pytest.raises(LaminaError) as refused:
        dequantise(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    assert words in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_tokenizer_beside_the_file_is_taken(
    tmp_path: Path, made: tuple[Path, torch.nn.Module, Path]
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", cut="own-way")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((made[2] / name).read_bytes())
    dequantise(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    text = "a\n\n12. the"
    found, wanted = (
        AutoTokenizer.from_pretrained(each)(text) for each in (tmp_path / "checkpoint", made[2])
    )
    assert found["input_ids"] == wanted["input_ids"]


def configuration(tmp_path: Path, **model: object) -> dict:
    workplace(tmp_path)
    return put(minimal(), "models.small", {"source": "tiny.gguf", **model})


def test_the_configuration_knows_its_layers_and_its_context(tmp_path: Path) -> None:
    raw = configuration(tmp_path)
    gguf_files.write(tmp_path / "tiny.gguf")
    assert gguf.shape(tmp_path / "tiny.gguf", "") == (gguf_files.LAYERS, gguf_files.CONTEXT)
    put(raw, "studies.prune.removed", [1])
    assert load(raw, tmp_path).models["small"].layers == gguf_files.LAYERS
    put(raw, "studies.prune.removed", [9])
    with pytest.raises(LaminaError, match="9"):
        load(raw, tmp_path)


def test_a_file_that_is_none_cut_off_or_missing_is_refused_before_a_job(tmp_path: Path) -> None:
    raw = configuration(tmp_path)
    with pytest.raises(LaminaError, match=r"models.small.source: there is no file 'tiny.gguf'"):
        load(raw, tmp_path)
    gguf_files.write(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    for damaged, why in (
        (b"PK" + whole, "magic"),
        (whole[:60], ""),
        (whole[:-2000], "ends before its tensors do"),
    ):
        (tmp_path / "tiny.gguf").write_bytes(damaged)
        with pytest.raises(LaminaError, match=f"not a complete GGUF file .*{why}"):
            load(raw, tmp_path)

"""A model that is a GGUF file: the same numbers, the same tokens, and nothing lost without a word."""

import json
import math
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Lfm2Config, Lfm2ForCausalLM

from lamina.errors import LaminaError
from lamina.models import gguf
from lamina.models.dequantise import dequantise_model, read_model
from lamina.models.manifest import describe_model
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from tests.given import gguf_files, llama_cpp, tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data

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
    dequantise_model(place / "tiny.gguf", place / "checkpoint")
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
    before = gguf_files.random_llama().state_dict()["model.layers.0.mlp.up_proj.weight"]
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
    manifest = describe_model("tiny", Model(source="tiny.gguf"), folder)
    assert (manifest["n_layers"], manifest["family"]) == (gguf_files.LAYERS, "llama")
    assert manifest["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_its_tokenizer_is_the_true_one(made: tuple[Path, torch.nn.Module, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made[2])
    for text in TEXTS:
        wanted = gguf_files.expected_tokenizer().encode(text)
        assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == wanted.tokens
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=False) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    talk = tokenizer.apply_chat_template([{"role": "user", "content": "in"}], tokenize=False)
    assert talk == "<|im_start|>user\nin<|im_end|>\n"
    assert set(tokenizer.all_special_tokens) == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre_tokenizer": "own-way"}, "cuts text in the way 'own-way', which is not known here"),
        (
            {"extra_fields": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 8.0}},
            "settings that would be lost (rope.scaling.type: yarn)",
        ),
        ({"extra_fields": {"llama.logit_scale": 8.0}}, "settings that would be lost (logit_scale)"),
        (
            {"extra_fields": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "numbers and its model",
        ),
        (
            {"extra_fields": {"llama.attention.value_length": 8.0}},
            "`llama.attention.value_length: 8.0`, and transformers would build the model with 16",
        ),
        ({"kv_heads": [2, 1, 2]}, "`llama.attention.head_count_kv: [2, 1, 2]`"),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(LaminaError) as refused:
        dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    assert words in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


F32, F16, Q8_0, BF16 = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.BF16,
)
# What files of several writers have, and is right.
ODD_AND_VALID: dict[str, dict[str, object]] = {
    "no general.name": {"name": None},
    "no name of the way to cut text": {"pre_tokenizer": None},
    "key-value heads listed by layer": {"kv_heads": [2, 2, 2]},
    "an output of its own": {"tied": False},
    "float32": {"formats": {"embedding": F32, "value": F32, "other": F32}},
    "float16, float32 and Q8_0": {"formats": {"embedding": F16, "value": F32, "other": Q8_0}},
    "bfloat16": {"formats": {"embedding": BF16, "value": BF16, "other": BF16}},
    "no experts, and says so": {
        "extra_fields": {"llama.expert_count": 0.0, "llama.expert_used_count": 0.0}
    },
    "frequencies that are divided by one": {
        "extra_fields": {"rope_freqs.weight": np.ones(8, np.float32)}
    },
    "notes of an importance matrix": {
        "extra_fields": {"quantize.imatrix.file": "a.dat", "general.tags": ["a", "b"]}
    },
    "SentencePiece": {"vocabulary": gguf_files.sentence_pieces(), "pre_tokenizer": "default"},
    "SentencePiece without flags": {
        "vocabulary": gguf_files.sentence_pieces(padding_token_id=0),
        "pre_tokenizer": None,
        "name": "mistral",
    },
    "three shards": {"n_shards": 3},
}


@pytest.mark.parametrize("name", ODD_AND_VALID)
def test_an_odd_and_valid_file_is_the_model_that_was_written(tmp_path: Path, name: str) -> None:
    model = gguf_files.write(tmp_path / "tiny.gguf", **ODD_AND_VALID[name])
    file = sorted(tmp_path.iterdir())[0]
    assert gguf.read_shape(file, "source") == (gguf_files.LAYERS, gguf_files.CONTEXT)
    dequantise_model(file, tmp_path / "checkpoint")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", use_safetensors=True)
    assert loaded.config.model_type == "llama"
    found, wanted = loaded.state_dict(), model.state_dict()
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)
    ids = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def llama3_factors(factor: float) -> np.ndarray:
    """What llama.cpp's converter writes for Llama 3.1 (factor 8) and 3.2 (32), for frequencies of this file."""
    factors: list[float] = []
    for pair in range(8):
        wavelength = 2 * math.pi * 5000.0 ** (2 * pair / 16)
        if wavelength < 8192 / 4:
            factors.append(1)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize(
    ("factors", "rope_type"),
    [
        (llama3_factors(8), "llama3"),
        (llama3_factors(32), "llama3"),
        (np.linspace(1, 5, 8, dtype=np.float32), "longrope"),
    ],
)
def test_factors_of_rotary_frequencies_are_kept(
    tmp_path: Path, factors: np.ndarray, rope_type: str
) -> None:
    model = gguf_files.write(tmp_path / "tiny.gguf", extra_fields={"rope_freqs.weight": factors})
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert loaded.config.rope_parameters["rope_type"] == rope_type
    # By hand: the frequencies of the model that was written, each divided by its factor.
    model.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    ids = torch.randint(3, 200, (2, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-3)


def test_frequencies_that_are_divided_by_one_number_are_kept(tmp_path: Path) -> None:
    model = gguf_files.write(
        tmp_path / "tiny.gguf", extra_fields={"llama.rope.scaling.factor": 4.0}
    )
    loaded = read_model(tmp_path / "tiny.gguf", "auto", "source")
    model.model.rotary_emb.inv_freq /= 4
    ids = torch.randint(3, 200, (2, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-3)


def test_key_value_heads_of_a_family_that_has_other_layers_are_kept(tmp_path: Path) -> None:
    """LFM2 lists them by layer: a layer without any is a convolution."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=len(gguf_files.TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
        rope_theta=5000.0,
    )
    model = Lfm2ForCausalLM(config).eval()
    writer = gguf_files.open_writer(
        tmp_path / "tiny.gguf",
        "lfm2",
        block_count=3,
        context_length=256,
        embedding_length=64,
        feed_forward_length=96,
        head_count=4,
        head_count_kv=[0, 2, 0],
        vocab_size=len(gguf_files.TOKENS),
        rope_freq_base=5000.0,
        layer_norm_rms_eps=1e-5,
        shortconv_l_cache=3,
        tokenizer_model="gpt2",
        tokenizer_pre="lfm2",
        token_list=gguf_files.TOKENS,
        token_types=gguf_files.BYTE_LEVEL.types,
        token_merges=gguf_files.MERGES,
    )
    names = get_tensor_name_map(MODEL_ARCH.LFM2, 3)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            place = names.get_name(name, try_suffixes=(".weight",))
            assert place, name
            kernel = weight.dim() == 3  # of a convolution, which a file has in two dimensions
            writer.add_tensor(place, (weight[:, 0] if kernel else weight).numpy().copy())
    gguf_files.close(writer)
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert loaded.config.layer_types == config.layer_types
    ids = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_sizes_that_are_not_the_defaults_of_the_family_are_kept(
    tmp_path: Path, family: str
) -> None:
    """transformers leaves the width of a head, and the scale of queries, at those of the released models."""
    model = llama_cpp.base_model(family)
    llama_cpp.convert(model, tmp_path / "tiny.gguf")
    loaded = read_model(tmp_path / "tiny.gguf", "auto", "source")
    rows = tiny.tokens(rows=2, length=48)
    with torch.no_grad():
        torch.testing.assert_close(loaded(rows).logits, model(rows).logits)


def test_a_shard_that_is_missing_or_another_one_is_named(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", n_shards=3)
    first, second, third = sorted(tmp_path.iterdir())
    assert gguf.shard_files(first) == [first, second, third]
    with pytest.raises(LaminaError, match="is shard 2 of 3. Write the first one"):
        gguf.read_shape(second, "source")
    third.rename(tmp_path / "kept")
    with pytest.raises(LaminaError, match="1 of the other 2 .*llama-gguf-split --merge"):
        gguf.read_shape(first, "source")
    third.write_bytes(second.read_bytes())
    with pytest.raises(LaminaError, match="00003-of-00003.gguf is not shard 3 of 3"):
        gguf.read_shape(first, "source")


def test_a_header_with_262144_tokens_and_150000_merges_is_read_in_seconds(
    tmp_path: Path,
) -> None:
    """Seconds of the processor, so that a busy machine changes nothing."""
    writer = gguf_files.open_writer(
        tmp_path / "large.gguf", "gemma3", block_count=2, context_length=64
    )
    writer.add_token_list([f"token{number}" for number in range(1 << 18)])
    writer.add_token_merges([f"left{number} right{number}" for number in range(150_000)])
    writer.add_token_scores([0.0] * (1 << 18))
    gguf_files.close(writer)
    before = time.process_time()
    assert gguf.read_shape(tmp_path / "large.gguf", "source") == (2, 64)
    assert time.process_time() - before < 3
    header = gguf.read_header(tmp_path / "large.gguf", "source")
    assert header.get("tokenizer.ggml.tokens") == 1 << 18
    assert gguf.read_texts(header.settings["tokenizer.ggml.tokens"])[-1] == "token262143"


@pytest.mark.slow
def test_a_model_with_a_large_vocabulary_is_dequantised(tmp_path: Path) -> None:
    """As many tokens as Gemma 3 has: GGUFReader alone would take half a minute, and is asked five times."""
    tokens = [*gguf_files.TOKENS, *(f"token{number}" for number in range(1 << 18))][: 1 << 18]
    vocabulary = gguf_files.Vocabulary(
        tokens, [1] * len(tokens), gguf_files.MERGES, flags=gguf_files.BYTE_LEVEL.flags
    )
    formats = dict.fromkeys(gguf_files.FORMATS, F16)
    model = gguf_files.write(tmp_path / "tiny.gguf", vocabulary=vocabulary, formats=formats)
    before = time.process_time()
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    assert time.process_time() - before < 30
    stored = load_file(tmp_path / "checkpoint/model.safetensors")["model.embed_tokens.weight"]
    torch.testing.assert_close(stored, model.state_dict()["model.embed_tokens.weight"])


def test_a_tokenizer_beside_the_file_is_taken(
    tmp_path: Path, made: tuple[Path, torch.nn.Module, Path]
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer="own-way")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((made[2] / name).read_bytes())
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    text = "a\n\n12. the"
    found, wanted = (
        AutoTokenizer.from_pretrained(each)(text) for each in (tmp_path / "checkpoint", made[2])
    )
    assert found["input_ids"] == wanted["input_ids"]


def configuration(tmp_path: Path, **model: object) -> dict:
    write_model_and_data(tmp_path)
    return set_key(minimal_config(), "models.small", {"source": "tiny.gguf", **model})


def test_the_configuration_knows_its_layers_and_its_context(tmp_path: Path) -> None:
    raw = configuration(tmp_path)
    gguf_files.write(tmp_path / "tiny.gguf")
    assert gguf.read_shape(tmp_path / "tiny.gguf", "") == (gguf_files.LAYERS, gguf_files.CONTEXT)
    set_key(raw, "studies.prune.removed", [1])
    assert load_configuration(raw, tmp_path).models["small"].layers == gguf_files.LAYERS
    set_key(raw, "studies.prune.removed", [9])
    with pytest.raises(LaminaError, match="9"):
        load_configuration(raw, tmp_path)


def test_a_file_that_is_none_cut_off_or_missing_is_refused_before_a_job(tmp_path: Path) -> None:
    raw = configuration(tmp_path)
    with pytest.raises(LaminaError, match=r"models.small.source: there is no file 'tiny.gguf'"):
        load_configuration(raw, tmp_path)
    gguf_files.write(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    for damaged, why in (
        (b"PK" + whole, "does not begin with the letters GGUF"),
        (whole[:20], "is too short"),
        (whole[:60], "ends within its header"),
        (whole[:-2000], "ends before its tensors do: "),
    ):
        (tmp_path / "tiny.gguf").write_bytes(damaged)
        with pytest.raises(LaminaError) as refused:
            load_configuration(raw, tmp_path)
        message = str(refused.value)
        assert (
            message.startswith("models.small.source: ") and "tiny.gguf is not a complete" in message
        )
        assert why in message and message.endswith("Download it again, or convert the model again.")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (struct.pack("<I", 1), "is of version 1 of the format"),
        (struct.pack(">I", 3), "is for big-endian machines. Convert it by gguf-convert-endian"),
    ],
)
def test_another_version_and_byte_order_are_refused_with_the_remedy(
    tmp_path: Path, version: bytes, words: str
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(whole[:4] + version + whole[8:])
    with pytest.raises(LaminaError, match=words):
        gguf.read_shape(tmp_path / "tiny.gguf", "source")

"""A model in a GGUF file has the weights, logits and tokens of the model that was written to it."""

import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Lfm2Config,
    Lfm2ForCausalLM,
    PreTrainedModel,
)

from lamina.errors import LaminaError
from lamina.models import devices, gguf
from lamina.models.dequantise import dequantise_model, read_gguf_tokenizer, read_model
from lamina.models.manifest import describe_model
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from tests.given import gguf_files, llama_cpp, tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.slow import slow_except
from tests.given.variants import compute_logits

TOKEN_IDS = torch.arange(3, 43).reshape(2, 20)
LONG_TOKEN_IDS = torch.randint(3, 200, (2, 200), generator=torch.Generator().manual_seed(0))
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


class Dequantised(NamedTuple):
    """The model that a file was written from, and the checkpoint that the file became."""

    original: PreTrainedModel
    checkpoint: Path


@pytest.fixture(scope="module")
def dequantised(tmp_path_factory: pytest.TempPathFactory) -> Dequantised:
    folder = tmp_path_factory.mktemp("gguf")
    original = gguf_files.write(folder / "tiny.gguf")
    dequantise_model(folder / "tiny.gguf", folder / "checkpoint", "float32")
    return Dequantised(original, folder / "checkpoint")


def load_checkpoint(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)


def assert_same_logits(
    loaded: PreTrainedModel,
    original: PreTrainedModel,
    token_ids: torch.Tensor = TOKEN_IDS,
    tolerance: float = 1e-4,
) -> None:
    torch.testing.assert_close(
        compute_logits(loaded, token_ids),
        compute_logits(original, token_ids),
        rtol=1e-4,
        atol=tolerance,
    )


def test_weights_are_those_that_quantising_left(dequantised: Dequantised) -> None:
    stored = load_file(dequantised.checkpoint / "model.safetensors")
    expected = dequantised.original.state_dict()
    assert stored.keys() == expected.keys() - {"lm_head.weight"}
    for name, weight in stored.items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6)
    # The weights before were others: quantising is no formality here.
    name = "model.layers.0.mlp.up_proj.weight"
    before = gguf_files.random_llama().state_dict()[name]
    assert (stored[name] - before).abs().max() > 0.01


@pytest.mark.parametrize(
    ("number_format", "dtype"),
    [
        (GGMLQuantizationType.Q8_0, torch.bfloat16),
        (GGMLQuantizationType.BF16, torch.bfloat16),
        (GGMLQuantizationType.F16, torch.float16),
        (GGMLQuantizationType.F32, torch.float32),
    ],
)
def test_quantised_weights_are_stored_in_bfloat16_and_others_as_they_are(
    tmp_path: Path, number_format: GGMLQuantizationType, dtype: torch.dtype
) -> None:
    original = gguf_files.write(tmp_path / "tiny.gguf", **in_format(number_format))
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    stored = load_file(tmp_path / "checkpoint/model.safetensors")
    for name, weight in stored.items():
        assert torch.equal(weight, original.state_dict()[name].to(dtype))


@pytest.mark.parametrize(
    ("flags", "is_native"),
    [("fpu avx512f avx512_bf16 amx_tile", True), ("fpu avx512f avx2 f16c", False)],
)
def test_a_gguf_file_is_computed_in_bfloat16_where_the_processor_multiplies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, is_native: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr(devices, "PROCESSOR_FILE", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gguf_files.write(tmp_path / "tiny.gguf")
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    usual = ("bfloat16", 2) if is_native else ("float32", 4)
    for dtype, (loaded, width) in {"auto": usual, "float32": ("float32", 4)}.items():
        entry = Model(source="tiny.gguf", dtype=dtype)
        manifest = describe_model("tiny", entry, tmp_path / "checkpoint")
        assert manifest["dtype"] == loaded
        assert manifest["loaded_dtype"] == loaded
        assert manifest["weights_bytes"] == width * manifest["parameters"]


def test_the_checkpoint_is_an_ordinary_one_with_the_same_logits(dequantised: Dequantised) -> None:
    config = json.loads((dequantised.checkpoint / "config.json").read_text())
    assert "quantization_config" not in config
    assert_same_logits(load_checkpoint(dequantised.checkpoint), dequantised.original)

    manifest = describe_model("tiny", Model(source="tiny.gguf"), dequantised.checkpoint)
    assert manifest["n_layers"] == gguf_files.LAYERS
    assert manifest["family"] == "llama"
    parameters = dequantised.original.parameters()
    assert manifest["parameters"] == sum(parameter.numel() for parameter in parameters)


def test_the_tokenizer_is_that_of_the_authors(dequantised: Dequantised) -> None:
    tokenizer = AutoTokenizer.from_pretrained(dequantised.checkpoint)
    authors_tokenizer = gguf_files.expected_tokenizer()
    for text in TEXTS:
        token_ids = tokenizer(text)["input_ids"]
        tokens = tokenizer.convert_ids_to_tokens(token_ids)
        assert tokens == authors_tokenizer.encode(text).tokens
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_id == 2
    assert tokenizer.pad_token_id == 2
    assert set(tokenizer.all_special_tokens) == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}


def test_the_chat_template_of_the_file_is_kept(dequantised: Dequantised) -> None:
    tokenizer = AutoTokenizer.from_pretrained(dequantised.checkpoint)
    chat = [{"role": "user", "content": "in"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False)
    assert prompt == "<|im_start|>user\nin<|im_end|>\n"


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_file_says_whether_a_token_begins_every_text(tmp_path: Path, adds_bos: bool) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", flags={"add_bos_token": adds_bos})
    tokenizer = read_gguf_tokenizer(tmp_path / "tiny.gguf", "source")
    assert (tokenizer("in")["input_ids"][0] == tokenizer.bos_token_id) == adds_bos


def test_the_file_names_the_unknown_token(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", flags={"unknown_token_id": 9})
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").unk_token_id == 9


def test_a_tokenizer_beside_the_file_is_used_instead(
    tmp_path: Path, dequantised: Dequantised
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer="own-way")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((dequantised.checkpoint / name).read_bytes())

    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    expected = AutoTokenizer.from_pretrained(dequantised.checkpoint)
    text = "a\n\n12. the"
    assert tokenizer(text)["input_ids"] == expected(text)["input_ids"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pre_tokenizer": "own-way"},
            "has the pre-tokenizer 'own-way', which lamina does not know",
        ),
        (
            {"extra_fields": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 8.0}},
            "settings that would be lost (rope.scaling.type: yarn)",
        ),
        ({"extra_fields": {"llama.logit_scale": 8.0}}, "settings that would be lost (logit_scale)"),
        (
            {"extra_fields": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "weights, but its model",
        ),
        (
            {"extra_fields": {"llama.attention.value_length": 8.0}},
            "`llama.attention.value_length: 8.0`, but transformers would build the model with 16",
        ),
        ({"kv_heads": [2, 1, 2]}, "`llama.attention.head_count_kv: [2, 1, 2]`"),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(LaminaError) as refusal:
        dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    assert message in str(refusal.value)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def in_format(number_format: GGMLQuantizationType) -> dict[str, Any]:
    return {"formats": dict.fromkeys(gguf_files.FORMATS, number_format)}


def with_setting(name: str, value: Any) -> dict[str, Any]:
    return {"extra_fields": {name: value}}


F32 = GGMLQuantizationType.F32
F16 = GGMLQuantizationType.F16
Q8_0 = GGMLQuantizationType.Q8_0
BF16 = GGMLQuantizationType.BF16
PIECES_WITHOUT_FLAGS = gguf_files.sentence_pieces(padding_token_id=0)
# What files of several writers have, and is right.
ODD_AND_VALID: dict[str, dict[str, Any]] = {
    "no general.name": {"name": None},
    "no name of the way to cut text": {"pre_tokenizer": None},
    "key-value heads listed by layer": {"kv_heads": [2, 2, 2]},
    "an output of its own": {"tied": False},
    "float32": in_format(F32),
    "float16, float32 and Q8_0": {"formats": {"embedding": F16, "value": F32, "other": Q8_0}},
    "bfloat16": in_format(BF16),
    "no experts": with_setting("llama.expert_count", 0.0),
    "no experts for a token": with_setting("llama.expert_used_count", 0.0),
    "frequencies divided by one": with_setting("rope_freqs.weight", np.ones(8, np.float32)),
    "an importance matrix": with_setting("quantize.imatrix.file", "a.dat"),
    "tags": with_setting("general.tags", ["a", "b"]),
    "SentencePiece": {"vocabulary": gguf_files.sentence_pieces(), "pre_tokenizer": "default"},
    "SentencePiece without flags": {
        "vocabulary": PIECES_WITHOUT_FLAGS,
        "pre_tokenizer": None,
        "name": "mistral",
    },
    "three shards": {"n_shards": 3},
}


@pytest.mark.parametrize("changes", ODD_AND_VALID.values(), ids=ODD_AND_VALID)
def test_an_odd_and_valid_file_is_the_model_that_was_written(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    original = gguf_files.write(tmp_path / "tiny.gguf", **changes)
    first_shard = sorted(tmp_path.iterdir())[0]
    assert gguf.read_shape(first_shard, "source") == (gguf_files.LAYERS, gguf_files.CONTEXT)

    dequantise_model(first_shard, tmp_path / "checkpoint", "float32")

    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.config.model_type == "llama"
    found_weights = loaded.state_dict()
    assert found_weights.keys() == original.state_dict().keys()
    for name, weight in original.state_dict().items():
        torch.testing.assert_close(found_weights[name], weight, rtol=0, atol=1e-6)
    assert_same_logits(loaded, original)


def llama3_factors(factor: float) -> np.ndarray:
    """What llama.cpp's converter writes for Llama 3.1 (factor 8) and 3.2 (32)."""
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
    original = gguf_files.write(tmp_path / "tiny.gguf", extra_fields={"rope_freqs.weight": factors})
    original.model.rotary_emb.inv_freq /= torch.from_numpy(factors)

    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint", "float32")

    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.config.rope_parameters["rope_type"] == rope_type
    assert_same_logits(loaded, original, LONG_TOKEN_IDS, tolerance=1e-3)


def test_one_factor_of_all_rotary_frequencies_is_kept(tmp_path: Path) -> None:
    original = gguf_files.write(
        tmp_path / "tiny.gguf", extra_fields={"llama.rope.scaling.factor": 4.0}
    )
    original.model.rotary_emb.inv_freq /= 4
    loaded = read_model(tmp_path / "tiny.gguf", "auto", "source")
    assert_same_logits(loaded, original, LONG_TOKEN_IDS, tolerance=1e-3)


def write_lfm2(file: Path) -> PreTrainedModel:
    """Write an LFM2, which lists key-value heads by layer: one without any is a convolution."""
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
        file,
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
    tensor_names = get_tensor_name_map(MODEL_ARCH.LFM2, 3)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        is_kernel = weight.dim() == 3  # of a convolution, which a file has in two dimensions
        matrix = weight[:, 0] if is_kernel else weight
        tensor_name = tensor_names.get_name(name, try_suffixes=(".weight",))
        assert tensor_name, name
        writer.add_tensor(tensor_name, matrix.numpy().copy())
    gguf_files.close(writer)
    return model


def test_layers_without_attention_are_kept(tmp_path: Path) -> None:
    original = write_lfm2(tmp_path / "tiny.gguf")
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint", "float32")
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.config.layer_types == ["conv", "full_attention", "conv"]
    assert_same_logits(loaded, original)


@pytest.mark.parametrize("family", slow_except(["gemma3_text"], ["qwen3", "gemma3_text"]))
def test_sizes_that_are_not_the_defaults_of_the_family_are_kept(
    tmp_path: Path, family: str
) -> None:
    """transformers leaves the width of a head, and the scale of queries, as in released models."""
    original = llama_cpp.base_model(family)
    llama_cpp.convert(original, tmp_path / "tiny.gguf")
    loaded = read_model(tmp_path / "tiny.gguf", "auto", "source")
    assert_same_logits(loaded, original, tiny.tokens(rows=2, length=48), tolerance=1e-5)


def test_a_header_with_262144_tokens_and_150000_merges_is_read_in_seconds(
    tmp_path: Path,
) -> None:
    """Seconds of the processor, so that a busy machine changes nothing."""
    file = tmp_path / "large.gguf"
    writer = gguf_files.open_writer(file, "gemma3", block_count=2, context_length=64)
    writer.add_token_list([f"token{index}" for index in range(262_144)])
    writer.add_token_merges([f"left{index} right{index}" for index in range(150_000)])
    writer.add_token_scores([0.0] * 262_144)
    gguf_files.close(writer)

    start_seconds = time.process_time()
    assert gguf.read_shape(file, "source") == (2, 64)
    assert time.process_time() - start_seconds < 3

    header = gguf.read_header(file, "source")
    assert header.get("tokenizer.ggml.tokens") == 262_144
    assert gguf.read_texts(header.settings["tokenizer.ggml.tokens"])[-1] == "token262143"


@pytest.mark.slow
def test_a_model_with_a_large_vocabulary_is_dequantised(tmp_path: Path) -> None:
    """As many tokens as Gemma 3 has, for which GGUFReader alone takes half a minute."""
    n_more = 262_144 - len(gguf_files.TOKENS)
    tokens = [*gguf_files.TOKENS, *(f"token{index}" for index in range(n_more))]
    vocabulary = gguf_files.Vocabulary(
        tokens, [1] * len(tokens), gguf_files.MERGES, flags=gguf_files.BYTE_LEVEL.flags
    )
    file = tmp_path / "tiny.gguf"
    original = gguf_files.write(file, vocabulary=vocabulary, **in_format(F16))

    start_seconds = time.process_time()
    dequantise_model(file, tmp_path / "checkpoint", "float32")
    assert time.process_time() - start_seconds < 30

    stored = load_file(tmp_path / "checkpoint/model.safetensors")
    name = "model.embed_tokens.weight"
    torch.testing.assert_close(stored[name], original.state_dict()[name])


@pytest.fixture
def raw_configuration(tmp_path: Path) -> dict[str, Any]:
    """A configuration whose model is the file tiny.gguf."""
    write_model_and_data(tmp_path)
    return set_key(minimal_config(), "models.small", {"source": "tiny.gguf"})


def test_more_layers_than_the_file_has_are_not_removed(
    tmp_path: Path, raw_configuration: dict[str, Any]
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf")
    set_key(raw_configuration, "studies.prune.removed", [1])
    configuration = load_configuration(raw_configuration, tmp_path)
    assert configuration.models["small"].layers == gguf_files.LAYERS

    set_key(raw_configuration, "studies.prune.removed", [9])
    with pytest.raises(LaminaError, match=r"studies.prune.removed.*9"):
        load_configuration(raw_configuration, tmp_path)


def test_a_missing_file_is_refused_when_the_configuration_is_read(
    tmp_path: Path, raw_configuration: dict[str, Any]
) -> None:
    with pytest.raises(LaminaError, match=r"models.small.source: there is no file 'tiny.gguf'"):
        load_configuration(raw_configuration, tmp_path)

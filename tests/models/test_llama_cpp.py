"""llama.cpp runs a cut model as transformers does if the cut keeps the kinds of layers, and another model if not."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lamina.models.dequantise import read_gguf_tokenizer, read_model
from tests.given import gguf_files, llama_cpp

pytestmark = pytest.mark.slow
pytest.importorskip(
    "cyllama", reason="SKIPPED: llama.cpp is not compared. pip install --no-deps cyllama==0.2.18"
)

MOST = 5e-3  # GELU in llama.cpp is a table in 16 bits


@pytest.mark.parametrize(("family", "units", "right"), llama_cpp.CASES)
def test_log_probabilities_are_those_of_transformers(
    family: str, units: list[str], right: bool, tmp_path: Path
) -> None:
    base, converted, taken = llama_cpp.largest_differences(family, units, tmp_path)
    assert base < MOST
    assert (converted < MOST) == (taken < MOST) == right
    if not right:
        assert min(converted, taken) > 10 * base


def test_a_cut_of_a_quantised_file_is_as_near_as_the_whole_file(tmp_path: Path) -> None:
    whole, cut = llama_cpp.largest_quantised_differences(tmp_path)
    assert cut < 2 * whole


# What texts are made of: blanks, ends of lines, numbers, emoji, marks, special tokens.
PIECES = [
    *("Hello", "hello", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "1", "12", "1234", "725.91"),
    *(
        "2026",
        "3½",
        "١٢",
        "😀",
        "👩‍👩‍👧",
        "é",
        "naïve",
        "中文",
        "日本語",
        "한국어",
        "'s",
        "'LL",
        "don't",
    ),
    *("!", "?!", "...", "$5", "x=y+1", "<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "B"),
    *(
        "Camel",
        "CASE",
        "__init__",
        "(",
        ")",
        "«q»",
        "\u00a0",
        "\u3000",
        "\u200b",
        "e\u0301",
        "Straße",
    ),
    *(
        "`code`",
        "~",
        "|",
        "^",
        "http://x.y/z?q=1",
        "—",
        "\u2028",
        "हिन्दी",
        "ไทย",
        "العربية",
        "<unk>",
    ),
]


def mixed_texts(number: int, seed: int = 0) -> list[str]:
    chosen = random.Random(seed)
    lengths = [chosen.randint(1, 12) for _ in range(number)]
    return ["", " ", *("".join(chosen.choices(PIECES, k=length)) for length in lengths)]


def greedy_vocabulary() -> gguf_files.Vocabulary:
    """A byte-level vocabulary whose merges cross every boundary, so that each cut before them is seen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=gguf_files.SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(mixed_texts(4000, seed=7), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].get)
    unreachable = [each for each in ("Ġhello2", "Camelhello", "1234") if each not in tokens]
    tokens += unreachable  # words that no merges lead to
    n_special = len(gguf_files.SPECIAL)
    return gguf_files.Vocabulary(
        tokens=tokens,
        types=[3] * n_special + [1] * (len(tokens) - n_special),
        merges=[" ".join(merge) for merge in trained["merges"]],
        flags=gguf_files.BYTE_LEVEL.flags,
    )


@pytest.mark.parametrize(
    "cut",
    ["gpt-2", "smollm", "qwen2", "llama-bpe", "falcon", "default", "qwen35", "dbrx", "stablelm2"],
)
def test_byte_level_tokens_are_those_of_llama_cpp(cut: str, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer=cut, vocabulary=greedy_vocabulary())
    tokenizer = read_gguf_tokenizer(tmp_path / "tiny.gguf", "source")
    texts = mixed_texts(800)
    expected = llama_cpp.token_ids(tmp_path / "tiny.gguf", texts)
    assert [tokenizer(text)["input_ids"] for text in texts] == expected


@pytest.mark.parametrize("flags", [{}, {"add_space_prefix": False}, {"add_bos_token": False}])
def test_sentence_pieces_are_those_of_llama_cpp(flags: dict[str, bool], tmp_path: Path) -> None:
    vocabulary = gguf_files.sentence_pieces(**flags)
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer="default", vocabulary=vocabulary)
    tokenizer = read_gguf_tokenizer(tmp_path / "tiny.gguf", "source")
    texts = mixed_texts(800)
    expected = llama_cpp.token_ids(tmp_path / "tiny.gguf", texts)
    assert [tokenizer(text)["input_ids"] for text in texts] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"tied": False},
        {"kv_heads": [2, 2, 2]},
        {"n_shards": 3},
        {"extra_fields": {"llama.rope.scaling.factor": 4.0}},
        {"extra_fields": {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.type": "none"}},
        {"extra_fields": {"rope_freqs.weight": np.array([1, 1, 1, 1, 1, 1.5, 4, 8], np.float32)}},
    ],
)
def test_an_odd_file_is_the_model_that_llama_cpp_has(
    changes: dict[str, object], tmp_path: Path
) -> None:
    formats = dict.fromkeys(gguf_files.FORMATS, GGMLQuantizationType.F32)
    gguf_files.write(tmp_path / "tiny.gguf", formats=formats, **changes)
    file = sorted(tmp_path.glob("*.gguf"))[0]
    rows = torch.randint(3, 200, (4, 48), generator=torch.Generator().manual_seed(0))
    expected = llama_cpp.log_probabilities(file, rows)
    found = llama_cpp.transformers_log_probabilities(read_model(file, "auto", "source"), rows)
    assert np.abs(found - expected).max() < 1e-3

"""llama.cpp runs cut models and tokenizes texts as transformers does, where lamina says so.

If a cut changes the kinds of layers, llama.cpp runs another model.
"""

import json
import random
from pathlib import Path
from typing import Any

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

TOLERANCE = 5e-3  # of log-probabilities: GELU in llama.cpp is a table in 16 bits


@pytest.mark.parametrize(("family", "units", "keeps_kinds"), llama_cpp.CASES)
def test_log_probabilities_are_those_of_transformers(
    family: str, units: list[str], keeps_kinds: bool, tmp_path: Path
) -> None:
    base, converted, copied = llama_cpp.largest_differences(family, units, tmp_path)
    assert base < TOLERANCE
    if keeps_kinds:
        assert max(converted, copied) < TOLERANCE
    else:
        assert min(converted, copied) > max(TOLERANCE, 10 * base)


def test_a_cut_of_a_quantised_file_is_as_near_as_the_file_itself(tmp_path: Path) -> None:
    base_difference, cut_difference = llama_cpp.largest_quantised_differences(tmp_path)
    assert cut_difference < 2 * base_difference


BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "\u2028"]
NUMBERS = ["1", "12", "1234", "725.91", "2026", "3½", "١٢", "$5", "x=y+1"]
WORDS = ["Hello", "hello", "B", "Camel", "CASE", "'s", "'LL", "don't", "é", "e\u0301", "naïve"]
SCRIPTS = ["中文", "日本語", "한국어", "हिन्दी", "ไทย", "العربية", "Straße"]
EMOJI = ["😀", "👩‍👩‍👧"]
MARKS = ["!", "?!", "...", "(", ")", "«q»", "~", "|", "^", "—", "`code`", "__init__"]
ADDRESSES = ["http://x.y/z?q=1"]
SPECIAL_TOKENS = ["<s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PIECES = BLANKS + NUMBERS + WORDS + SCRIPTS + EMOJI + MARKS + ADDRESSES + SPECIAL_TOKENS


def mix_texts(n_texts: int, seed: int = 0) -> list[str]:
    """Texts of one to twelve pieces, an empty text and a blank."""
    generator = random.Random(seed)
    texts = ["", " "]
    for _ in range(n_texts):
        n_pieces = generator.randint(1, 12)
        texts.append("".join(generator.choices(PIECES, k=n_pieces)))
    return texts


def greedy_vocabulary() -> gguf_files.Vocabulary:
    """A byte-level vocabulary whose merges cross every boundary, so that each cut shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=gguf_files.SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(mix_texts(4000, seed=7), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].get)
    for token in ("Ġhello2", "Camelhello", "1234"):  # words that no merges lead to
        if token not in tokens:
            tokens.append(token)
    n_special = len(gguf_files.SPECIAL)
    return gguf_files.Vocabulary(
        tokens=tokens,
        types=[3] * n_special + [1] * (len(tokens) - n_special),
        merges=[" ".join(merge) for merge in trained["merges"]],
        flags=gguf_files.BYTE_LEVEL.flags,
    )


def assert_tokens_of_llama_cpp(file: Path) -> None:
    tokenizer = read_gguf_tokenizer(file, "source")
    texts = mix_texts(800)
    for text, token_ids in zip(texts, llama_cpp.token_ids(file, texts), strict=True):
        assert tokenizer(text)["input_ids"] == token_ids, text


@pytest.mark.parametrize(
    "pre_tokenizer",
    ["gpt-2", "smollm", "qwen2", "llama-bpe", "falcon", "default", "qwen35", "dbrx", "stablelm2"],
)
def test_byte_level_tokens_are_those_of_llama_cpp(pre_tokenizer: str, tmp_path: Path) -> None:
    gguf_files.write(
        tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer, vocabulary=greedy_vocabulary()
    )
    assert_tokens_of_llama_cpp(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("flags", [{}, {"add_space_prefix": False}, {"add_bos_token": False}])
def test_sentence_pieces_are_those_of_llama_cpp(flags: dict[str, bool], tmp_path: Path) -> None:
    vocabulary = gguf_files.sentence_pieces(**flags)
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer="default", vocabulary=vocabulary)
    assert_tokens_of_llama_cpp(tmp_path / "tiny.gguf")


FREQUENCY_FACTORS = np.array([1, 1, 1, 1, 1, 1.5, 4, 8], np.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {"tied": False},
        {"kv_heads": [2, 2, 2]},
        {"n_shards": 3},
        {"extra_fields": {"llama.rope.scaling.factor": 4.0}},
        {"extra_fields": {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.type": "none"}},
        {"extra_fields": {"rope_freqs.weight": FREQUENCY_FACTORS}},
    ],
)
def test_an_odd_file_is_the_model_that_llama_cpp_has(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    formats = dict.fromkeys(gguf_files.FORMATS, GGMLQuantizationType.F32)
    gguf_files.write(tmp_path / "tiny.gguf", formats=formats, **changes)
    first_shard = sorted(tmp_path.glob("*.gguf"))[0]
    token_ids = torch.randint(3, 200, (4, 48), generator=torch.Generator().manual_seed(0))

    model = read_model(first_shard, "auto", "source")
    logprobs = llama_cpp.transformers_log_probabilities(model, token_ids)
    expected_logprobs = llama_cpp.log_probabilities(first_shard, token_ids)
    assert np.abs(logprobs - expected_logprobs).max() < 1e-3

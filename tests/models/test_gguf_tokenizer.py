"""The tokens of a GGUF file are those that llama.cpp gave; test_llama_cpp.py asks it itself."""

from pathlib import Path

import pytest
from gguf import TokenType
from transformers import AutoTokenizer

from lamina.errors import LaminaError
from lamina.models.dequantise import dequantise_model, read_gguf_tokenizer
from lamina.models.tokenizer import read_tokenizer
from tests.given import gguf_files
from tests.given.gguf_files import BYTE_LEVEL, Vocabulary, sentence_pieces

# What llama.cpp gives (by the package cyllama 0.2.18, with special tokens), tokens apart by blanks.
SENTENCE_PIECES = {
    " the inn": "<s> ▁▁ th e ▁in n",
    "  two blanks": "<s> ▁▁ ▁t w o ▁ b l a n k s",
    "\nin": "<s> ▁ <0x0A> in",
    "\n\n  12": "<s> ▁ <0x0A> <0x0A> ▁▁ 12",
    "\tthe": "<s> ▁ <0x09> th e",
    "the ": "<s> ▁ th e ▁",
    "trailing  \n": "<s> ▁t r a i l in g ▁▁ <0x0A>",
    " 1234 5": "<s> ▁▁ 12 3 4 ▁ 5",
    "725.91": "<s> ▁ 7 2 5 . 9 1",
    "😀 the": "<s> ▁ <0xF0> <0x9F> <0x98> <0x80> ▁ th e",
    " 😀": "<s> ▁▁ <0xF0> <0x9F> <0x98> <0x80>",
    "</s> the<s>in": "<s> </s> ▁▁ th e <s> ▁in",
    "a<tool> b": "<s> ▁ a <tool> ▁▁ b",
    "": "<s>",
    " ": "<s> ▁▁",
    "it's 3½": "<s> ▁ i t ' s ▁ 3 <0xC2> <0xBD>",
}
WITHOUT_A_BLANK = {
    " the inn": "<s> ▁ th e ▁in n",
    "\nin": "<s> <0x0A> in",
    "\n\n  12": "<s> <0x0A> <0x0A> ▁▁ 12",
    " 1234 5": "<s> ▁1 2 3 4 ▁ 5",
    "</s> the<s>in": "<s> </s> ▁ th e <s> in",
    "a<tool> b": "<s> a <tool> ▁ b",
    "": "<s>",
    " ": "<s> ▁",
}
DIGITS = {
    " the inn": "Ġthe Ġ in n",
    "  two blanks": "Ġ Ġt w o Ġ b l a n k s",
    "\n\n  12": "ĊĊ ĠĠ 1 2",
    "\tthe": "ĉ t he",
    "the ": "t he Ġ",
    "trailing  \n": "t r a i l in g ĠĠ Ċ",
    " 1234 5": "Ġ 1 2 3 4 Ġ 5",
    "725.91": "7 2 5 . 9 1",
    "😀 the": "ð Ł ĺ Ģ Ġthe",
    "in<|im_end|> the": "in <|im_end|> Ġthe",
    "": "",
    " ": "Ġ",
    "it's 3½": "i t ' s Ġ 3 Â ½",
}


@pytest.mark.parametrize(
    ("vocabulary", "pre_tokenizer", "expected_tokens"),
    [
        (sentence_pieces(), "default", SENTENCE_PIECES),
        (sentence_pieces(add_space_prefix=True), "default", SENTENCE_PIECES),
        (sentence_pieces(add_space_prefix=False), "default", WITHOUT_A_BLANK),
        (BYTE_LEVEL, "smollm", DIGITS),
    ],
)
def test_tokens_are_those_of_llama_cpp(
    tmp_path: Path, vocabulary: Vocabulary, pre_tokenizer: str, expected_tokens: dict[str, str]
) -> None:
    """Also when the checkpoint is read again, by lamina and by transformers alone."""
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer, vocabulary=vocabulary)
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    tokenizers = (
        read_gguf_tokenizer(tmp_path / "tiny.gguf", "source"),
        read_tokenizer(tmp_path / "checkpoint"),
        AutoTokenizer.from_pretrained(tmp_path / "checkpoint"),
    )
    for tokenizer in tokenizers:
        for text, tokens in expected_tokens.items():
            token_ids = tokenizer(text)["input_ids"]
            assert tokenizer.convert_ids_to_tokens(token_ids) == tokens.split()
            if "<" not in text:
                assert tokenizer.decode(token_ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected_tokens"),
    [("llama-bpe", ["Ġinner"]), ("smollm", ["Ġ", "in", "n", "e", "r"])],
)
def test_words_that_no_merges_lead_to_are_taken_whole_where_llama_cpp_does(
    tmp_path: Path, pre_tokenizer: str, expected_tokens: list[str]
) -> None:
    tokens = [*gguf_files.TOKENS, "Ġinner"]
    types = [*BYTE_LEVEL.types, TokenType.NORMAL]
    vocabulary = Vocabulary(tokens, types, gguf_files.MERGES, flags=BYTE_LEVEL.flags)
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer, vocabulary=vocabulary)
    tokenizer = read_gguf_tokenizer(tmp_path / "tiny.gguf", "source")
    assert tokenizer.tokenize(" inner") == expected_tokens


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected_pieces"),
    [
        ("gpt-2", "Ġ2026 725 . 91"),
        ("smollm", "Ġ 2 0 2 6 7 2 5 . 9 1"),
        ("qwen2", "Ġ 2 0 2 6 7 2 5 . 9 1"),
        ("llama-bpe", "Ġ 202 6 725 . 91"),
        ("falcon", "Ġ 202 6 725 . 91"),
        ("default", "Ġ 202 6 725 . 91"),
        (None, "Ġ 202 6 725 . 91"),
    ],
)
def test_numbers_are_cut_as_the_file_says(
    tmp_path: Path, pre_tokenizer: str | None, expected_pieces: str
) -> None:
    """Pieces that no merge crosses, as llama.cpp gave them with a vocabulary that merges all."""
    gguf_files.write(tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer)
    tokenizer = read_gguf_tokenizer(tmp_path / "tiny.gguf", "source")
    backend = tokenizer.backend_tokenizer
    pieces: list[str] = []
    for text in (" 2026", "725.91"):
        pieces += [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == expected_pieces.split()


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (
            Vocabulary(["a", "b", "a"], [1, 1, 1], ["a b"]),
            "has the token 'a' twice in its vocabulary",
        ),
        (
            Vocabulary(["a", "b", "c"], [1, 1, 1], ["a b"]),
            "merges 'a b', but not all of these are tokens",
        ),
        (Vocabulary(["a", "b", "c"], [1, 1, 1], None), "a byte-level vocabulary without merges"),
        (
            Vocabulary(["a", "b", "ab"], [1, 1, 1], ["a b"], flags={"bos_token_id": 9}),
            "has the token 9 for bos, but a vocabulary of 3 tokens",
        ),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(
    tmp_path: Path, vocabulary: Vocabulary, message: str
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", vocabulary=vocabulary)
    with pytest.raises(LaminaError, match=message) as refusal:
        read_gguf_tokenizer(tmp_path / "tiny.gguf", "models.mine.source")
    assert str(refusal.value).startswith("models.mine.source: ")
    assert "Put the model's tokenizer.json" in str(refusal.value)

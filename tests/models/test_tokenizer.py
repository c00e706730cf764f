"""Text is cut as tokenizer.json says, whatever transformers makes of the name of its class."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lamina.models.load import load_tokenizer
from tests.given import gguf_files


def sentence_pieces() -> Tokenizer:
    """As Llama 2 has it: a blank before each text, and blanks as letters."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = ["<unk>", "<s>", "</s>", *letters, "▁▁", "th", "he", "▁a"]
    merges = [("▁", "▁"), ("t", "h"), ("h", "e"), ("▁", "a")]
    numbered = {token: index for index, token in enumerate(vocabulary)}
    built = Tokenizer(models.BPE(numbered, merges, unk_token="<unk>", fuse_unk=True))
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    built.add_special_tokens(["<unk>", "<s>", "</s>"])
    return built


def three_digits() -> Tokenizer:
    """As Llama 3 has it: numbers in pieces of three digits."""
    built = gguf_files.expected_tokenizer()
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    built.model = models.BPE(
        vocab={token: index for index, token in enumerate([*gguf_files.TOKENS, "34", "23", "234"])},
        merges=[("1", "2"), ("3", "4"), ("2", "3"), ("2", "34")],
    )
    return built


@pytest.mark.parametrize(
    "name",
    ["GPT2Tokenizer", "LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizer"],
)
@pytest.mark.parametrize("make", [gguf_files.expected_tokenizer, sentence_pieces, three_digits])
@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_text_is_cut_as_tokenizer_json_says_whatever_its_class_is_called(
    tmp_path: Path, name: str, make: Callable[[], Tokenizer], settings: dict[str, bool]
) -> None:
    """transformers builds these classes anew: GPT2Tokenizer, as SmolLM2 has it, then leaves numbers whole."""
    true = make()
    bos = true.id_to_token(1)
    PreTrainedTokenizerFast(tokenizer_object=true, bos_token=bos).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    changed = json.loads(file.read_text()) | {"tokenizer_class": name} | settings
    file.write_text(json.dumps(changed))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = load_tokenizer({"path": str(tmp_path), "source": "mine", "trust_remote_code": False})
    for text in (
        "The 12th the 12,\n\n 1",
        "  in\n\n12",
        f"{bos} 12",
        " the answer",
        "725.91 in 1234, 2026",
        "the\n the",
        "",
    ):
        assert found(text, add_special_tokens=False)["input_ids"] == true.encode(text).ids
    assert found.bos_token_id == 1


def test_a_class_of_bytes_puts_a_blank_before_a_text_where_its_settings_say_so(
    tmp_path: Path,
) -> None:
    """As RoBERTa's vocabulary has it: tokenizer.json leaves it out, and tokenizer_config.json asks for it."""
    plain = gguf_files.expected_tokenizer()
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<|im_start|>").save_pretrained(
        tmp_path
    )
    file = tmp_path / "tokenizer_config.json"
    changes = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    found = load_tokenizer({"path": str(tmp_path), "source": "mine", "trust_remote_code": False})
    assert found.tokenize("the") == ["Ġthe"]

"""Text is encoded as tokenizer.json says; a tokenizer that does not fit its model is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lamina.data.encoding import open_encoder
from lamina.data.prepare import text_samples
from lamina.errors import LaminaError
from lamina.evaluation.perplexity import PerplexityBenchmark
from lamina.evaluation.together import Together
from lamina.models.load import load_folder, load_tokenizer
from lamina.options.benchmarks import TextEntry
from lamina_workflow.checks.load import load_configuration
from tests.given import gguf_files, tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.model_folders import manifest_of, save_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama with its tokenizer."""
    return save_model(tmp_path / "model")


def build_sentence_pieces() -> Tokenizer:
    """As Llama 2 has it: a blank before each text, and blanks as letters."""
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, "▁", *"abcdefghijklmnopqrstuvwxyz", "▁▁", "th", "he", "▁a"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("▁", "▁"), ("t", "h"), ("h", "e"), ("▁", "a")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


def build_three_digits() -> Tokenizer:
    """As Llama 3 has it: numbers in pieces of three digits."""
    tokenizer = gguf_files.expected_tokenizer()
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokens = [*gguf_files.TOKENS, "34", "23", "234"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("1", "2"), ("3", "4"), ("2", "3"), ("2", "34")]
    tokenizer.model = models.BPE(vocabulary, merges)
    return tokenizer


def save_as_class(
    tokenizer: Tokenizer, folder: Path, class_name: str, model_type: str, **settings: bool
) -> None:
    """Write a tokenizer whose settings name a class of transformers."""
    bos_token = tokenizer.id_to_token(1)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos_token).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    stated = json.loads(file.read_text()) | {"tokenizer_class": class_name} | settings
    file.write_text(json.dumps(stated))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.mark.parametrize(
    "class_name",
    ["GPT2Tokenizer", "LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizer"],
)
@pytest.mark.parametrize(
    "build", [gguf_files.expected_tokenizer, build_sentence_pieces, build_three_digits]
)
@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_text_is_encoded_as_tokenizer_json_says_whatever_its_class_is_called(
    tmp_path: Path, class_name: str, build: Callable[[], Tokenizer], settings: dict[str, bool]
) -> None:
    """transformers builds these classes anew: SmolLM2's GPT2Tokenizer then leaves numbers whole."""
    stated = build()
    bos_token = stated.id_to_token(1)
    save_as_class(stated, tmp_path, class_name, "llama", **settings)

    tokenizer = load_tokenizer(manifest_of(tmp_path))

    for text in (
        "The 12th the 12,\n\n 1",
        "  in\n\n12",
        f"{bos_token} 12",
        " the answer",
        "725.91 in 1234, 2026",
        "the\n the",
        "",
    ):
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert token_ids == stated.encode(text).ids
    assert tokenizer.bos_token_id == 1


def test_a_byte_level_class_puts_a_blank_before_a_text_where_its_settings_say_so(
    tmp_path: Path,
) -> None:
    """As RoBERTa's vocabulary: tokenizer.json has no blank, tokenizer_config.json asks for one."""
    stated = gguf_files.expected_tokenizer()
    stated.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    save_as_class(stated, tmp_path, "GPT2Tokenizer", "gpt2", add_prefix_space=True)

    tokenizer = load_tokenizer(manifest_of(tmp_path))

    assert tokenizer.tokenize("the") == ["Ġthe"]


def test_a_missing_chat_template_is_refused_when_the_configuration_is_read(
    tmp_path: Path,
) -> None:
    write_model_and_data(tmp_path)
    raw = set_key(minimal_config(), "models.small.chat_template", True)
    with pytest.raises(LaminaError, match=r"^models.small.chat_template: .* has no chat template"):
        load_configuration(raw, tmp_path)
    (tmp_path / "small/chat_template.jinja").write_text("{{ messages }}")
    assert load_configuration(raw, tmp_path)


NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [("{% for m in %}", "TemplateSyntaxError"), (NEEDS_SYSTEM, "no system")],
)
def test_a_chat_template_that_fails_is_refused_with_its_error(
    folder: Path, template: str, message: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    expected = rf"the chat template of the model 'mine' .*{message}.*chat_template.jinja"
    with pytest.raises(LaminaError, match=expected):
        load_tokenizer(manifest_of(folder, chat_template=True, system_prompt=None))


def test_a_chat_template_is_tried_with_the_system_prompt(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(NEEDS_SYSTEM)
    assert load_tokenizer(manifest_of(folder, chat_template=True, system_prompt="Be short."))


UNKNOWN_TOKEN = (
    rf"holds \[PAD\], token {tiny.VOCABULARY} of the tokenizer, but the model has embeddings for "
    rf"only {tiny.VOCABULARY} tokens"
)


def test_a_text_with_a_token_beyond_the_embedding_is_refused() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["[PAD]"])
    texts = ["w1 w2 w3", "w1 [PAD] w2"]
    assert len(text_samples(texts[:1], tokenizer, 9, tiny.VOCABULARY)) == 1
    with pytest.raises(LaminaError, match=rf"document 1 \('w1 \[PAD\] w2…'\) {UNKNOWN_TOKEN}"):
        text_samples(texts, tokenizer, 9, tiny.VOCABULARY)


def test_a_benchmark_with_a_token_beyond_the_embedding_is_refused(folder: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["[PAD]"])
    model = load_folder(folder, "auto", False)
    options = TextEntry(text="x", window=8)
    texts = ["w1 w2 w3", "w1 [PAD] w2"]
    benchmark = PerplexityBenchmark("held", texts, tokenizer, options)
    message = rf"benchmarks.perplexity.held: document 1 {UNKNOWN_TOKEN}"
    with pytest.raises(LaminaError, match=message):
        benchmark.score(model, "base", Together(model, {}))


def test_a_question_with_a_token_beyond_the_embedding_is_refused(folder: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["[PAD]"])
    encoder = open_encoder(load_folder(folder, "auto", False), tokenizer)
    assert encoder.tok_encode("w1 w2")
    with pytest.raises(LaminaError, match=rf"the question '…w1 \[PAD\]' {UNKNOWN_TOKEN}"):
        encoder.tok_encode("w1 [PAD]")


def save_with_frame(folder: Path, frame: str) -> None:
    """Write a tokenizer that puts special tokens around each text $A."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save_pretrained(folder)


def test_a_tokenizer_that_begins_every_text_is_kept(folder: Path) -> None:
    save_with_frame(folder, "<s> $A")
    assert load_tokenizer(manifest_of(folder))("w1")["input_ids"][0] == 1


@pytest.mark.parametrize("frame", ["$A </s>", "<s> $A </s>"])
def test_a_tokenizer_that_ends_every_text_is_refused(folder: Path, frame: str) -> None:
    save_with_frame(folder, frame)
    message = r"'mine' puts </s> after every text.*\"add_eos_token\": false"
    with pytest.raises(LaminaError, match=message):
        load_tokenizer(manifest_of(folder))

"""Reads a folder's tokenizer as its files define it, and checks what it does to a text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lamina.errors import LaminaError


def special_tokens_after(tokenizer: PreTrainedTokenizerBase) -> str:
    """The special tokens that a tokenizer adds after a text; empty if it adds none there."""
    with_special = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    if not text_ids:
        return ""
    n_text = len(text_ids)
    for start in range(len(with_special) - n_text + 1):
        if with_special[start : start + n_text] == text_ids:
            after = with_special[start + n_text :]
            return " ".join(tokenizer.convert_ids_to_tokens(after))
    return ""


def read_tokenizer(folder: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, which splits text as its tokenizer.json says.

    transformers rebuilds some tokenizers from the vocabulary alone. They then split text as the
    class does, and not as the file says: SmolLM2's, of class GPT2Tokenizer, leaves numbers whole,
    and Llama's drops a space before a text. If the two differ, the file is used as it is, with the
    special tokens of the class.
    """
    by_class: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **options)
    file = Path(folder, "tokenizer.json")
    is_stock = type(by_class).__module__.startswith("transformers.")
    if type(by_class) is PreTrainedTokenizerFast or not is_stock or not file.is_file():
        return by_class
    stored = Tokenizer.from_file(str(file))
    if _split_alike(by_class.backend_tokenizer, stored):
        return by_class

    special_tokens: dict[str, Any] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = getattr(by_class, name)
        if token is not None and stored.token_to_id(token) is not None:
            special_tokens[name] = token
    # The tokenizer would keep other options, and fail to write them when it is saved.
    from_file: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=bool(options.get("local_files_only")), **special_tokens
    )
    pre_tokenizer = from_file.backend_tokenizer.pre_tokenizer
    if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        # Byte-level tokenizer classes always took this from tokenizer_config.json.
        pre_tokenizer.add_prefix_space |= bool(by_class.init_kwargs.get("add_prefix_space"))
    return from_file


def _split_alike(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether two tokenizers give the same tokens for any text, apart from special ones."""
    first_parts = json.loads(first.to_str())
    second_parts = json.loads(second.to_str())
    return all(
        first_parts[name] == second_parts[name] for name in ("normalizer", "pre_tokenizer", "model")
    )


def try_template(tokenizer: PreTrainedTokenizerBase, manifest: Mapping[str, Any]) -> None:
    """Refuse a chat template that cannot render a question, with the system prompt if any.

    Raises LaminaError that quotes the template's message.
    """
    turns: list[dict[str, str]] = []
    system_prompt = manifest.get("system_prompt")
    if system_prompt:
        turns.append({"role": "system", "content": str(system_prompt)})
    turns.append({"role": "user", "content": "?"})
    template_arguments = manifest.get("template_arguments") or {}
    try:
        tokenizer.apply_chat_template(turns, tokenize=False, **template_arguments)
    except (LaminaError, MemoryError):
        raise
    except Exception as error:  # a template can raise anything
        model = manifest.get("source", manifest["path"])
        raise LaminaError(
            f"the chat template of the model '{model}' does not take a question: "
            f"{type(error).__name__}: {error} Correct it (chat_template.jinja, or "
            "tokenizer_config.json), or write `chat_template: false` for the model."
        ) from error

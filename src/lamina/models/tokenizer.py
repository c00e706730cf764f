"""A folder's tokenizer: read as its files say, and what it does to a text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lamina.errors import LaminaError


def special_behind(tokenizer: PreTrainedTokenizerBase) -> str:
    """The special tokens that a tokenizer puts behind a text; empty if it puts none there."""
    whole, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    starts = (
        [at for at in range(len(whole) - len(bare) + 1) if whole[at : at + len(bare)] == bare]
        if bare
        else []
    )
    return (
        " ".join(tokenizer.convert_ids_to_tokens(whole[starts[0] + len(bare) :])) if starts else ""
    )


def read_tokenizer(folder: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, which cuts text as its tokenizer.json says.

    transformers builds some classes anew from the vocabulary alone, and then text is cut in the way of the class and
    not of the file: SmolLM2's, whose class is named GPT2Tokenizer, leaves numbers whole, and Llama's drops a blank
    before a text. Where the two are not built alike, the file is read as it stands, with the special tokens of the
    class.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **options)
    file = Path(folder, "tokenizer.json")
    is_stock = type(tokenizer).__module__.startswith("transformers.")
    if type(tokenizer) is PreTrainedTokenizerFast or not is_stock or not file.is_file():
        return tokenizer
    stated = Tokenizer.from_file(str(file))
    if _cuts_alike(tokenizer.backend_tokenizer, stated):
        return tokenizer
    special: dict[str, Any] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = getattr(tokenizer, name)
        if token is not None and stated.token_to_id(token) is not None:
            special[name] = token
    # What else a tokenizer is given, it keeps, and cannot write when it is saved.
    from_file: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=bool(options.get("local_files_only")), **special
    )
    pre_tokenizer = from_file.backend_tokenizer.pre_tokenizer
    if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        # tokenizer_config.json decides: classes of byte-level vocabularies always took it from there.
        pre_tokenizer.add_prefix_space |= bool(tokenizer.init_kwargs.get("add_prefix_space"))
    return from_file


def _cuts_alike(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether two tokenizers give the same tokens for any text, special tokens around it aside."""
    parts = ("normalizer", "pre_tokenizer", "model")
    first_parts, second_parts = (json.loads(each.to_str()) for each in (first, second))
    return all(first_parts[part] == second_parts[part] for part in parts)


def try_template(tokenizer: PreTrainedTokenizerBase, manifest: Mapping[str, Any]) -> None:
    """Refuse, by a LaminaError, a chat template that cannot write one question, with the system prompt if there is."""
    system = manifest.get("system_prompt")
    turns = [{"role": "system", "content": str(system)}] if system else []
    turns.append({"role": "user", "content": "?"})
    try:
        tokenizer.apply_chat_template(
            turns, tokenize=False, **(manifest.get("template_arguments") or {})
        )
    except (LaminaError, MemoryError):
        raise
    except Exception as error:  # a template can raise anything
        raise LaminaError(
            f"the chat template of the model '{manifest.get('source', manifest['path'])}' does not take a question: "
            f"{type(error).__name__}: {error} Correct it (chat_template.jinja, or tokenizer_config.json), or write "
            "`chat_template: false` for the model."
        ) from error

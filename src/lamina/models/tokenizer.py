"""A folder's tokenizer: read as its files say, and what it does to a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lamina.errors import LaminaError

_TEXTS = (
    "w1 w2",
    "The 12th naïve answer,\n\n\tit's 3.5",
    "中文 ✓",
)  # on which two tokenizers are compared


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

    transformers builds some classes anew from the vocabulary alone. SmolLM2's, whose class is named GPT2Tokenizer, then
    no longer cuts numbers into digits. Such a one is read from tokenizer.json as it stands.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **options)
    file, own = Path(folder, "tokenizer.json"), options.get("trust_remote_code")
    if type(tokenizer) is PreTrainedTokenizerFast or own or not file.is_file():
        return tokenizer
    if tokenizer.init_kwargs.get("add_prefix_space"):  # which the class adds to what the file says
        return tokenizer
    stated = Tokenizer.from_file(str(file))
    stated.no_truncation()
    stated.no_padding()
    for text in _TEXTS:
        if (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            != stated.encode(text, add_special_tokens=False).ids
        ):
            # What else a tokenizer is given, it keeps, and cannot write when it is saved.
            local_files_only = bool(options.get("local_files_only"))
            return PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=local_files_only
            )
    return tokenizer


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

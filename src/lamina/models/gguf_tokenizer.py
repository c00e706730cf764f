"""Build the tokenizer that a GGUF file describes. It yields the same tokens as llama.cpp.

transformers builds one of its own classes from such a file. These classes cut some texts
differently: they drop a space at the start of a text, keep numbers whole, and merge words that the
vocabulary holds. So this module builds the tokenizer from its parts: the vocabulary, the merges or
scores, and the name of the way in which text is cut before merging.

Two differences from llama.cpp are intended:

- llama.cpp takes some tokens for control tokens because of their text. An example is `</s>` in
  Qwen's vocabulary, which ends texts with another token. Here the types in the file decide.
- llama.cpp has its own regular expressions for `gpt-4o` and `tekken`. They cut letters with marks
  and letters without case at other positions. This module has the expressions of the models'
  authors.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

from lamina.models.gguf import Header, read_numbers, read_texts

# Kinds of tokens: their numbers in the format.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_BLANK = "▁"  # stands for a space in SentencePiece vocabularies

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of GPT-2
_DIGIT = r"\p{N}"
_THREE_DIGITS = r"[0-9][0-9][0-9]"
# Ways of cutting text into pieces that no merge crosses, by their names in GGUF files. Each
# expression cuts the pieces that the previous one left. transformers has the ways that need only
# one expression.
_CUTS: dict[str, tuple[str, ...]] = {
    **{name: (pattern,) for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items()},
    **dict.fromkeys(
        ("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "gigachat", "mellum", "exaone4"),
        (_GPT2,),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        (_DIGIT, _GPT2),
    ),
    **dict.fromkeys(("stablelm2", "hunyuan"), (GGUF_PRE_TOKENIZER_SPLITS["qwen2"],)),
    **dict.fromkeys(("glm4", "chatglm-bpe"), (GGUF_PRE_TOKENIZER_SPLITS["llama3"],)),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS),
}
# Vocabularies whose words are taken whole, even where no merges lead to them.
_WHOLE_WORDS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("jina-v5-nano", "tekken"),
)
# Vocabularies that begin a text with a special token, unless the file says otherwise.
_BEGIN = (*_WHOLE_WORDS, "chameleon")


class UnknownTokenizerError(Exception):
    """A tokenizer cannot be built. The message continues a sentence that begins with the file."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file and its settings for them."""

    kind: str  # gpt2: byte-level, with merges; llama: SentencePiece, with scores
    cut: str
    tokens: list[str]
    token_types: list[int]
    flags: dict[str, Any]  # settings of the tokenizer, by name without `tokenizer.ggml.`

    def special(self, name: str) -> str | None:
        """The token of a role (bos, eos, padding, unknown), None if there is none."""
        defaults = {"bos": 1, "eos": 2, "unknown": 0} if self.kind == "llama" else {}
        index = self.flags.get(f"{name}_token_id", defaults.get(name))
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise UnknownTokenizerError(
                f"has the token {index} for {name}, but a vocabulary of {len(self.tokens)} tokens"
            )
        return self.tokens[index]

    @property
    def begins(self) -> bool:
        """Whether each text begins with the bos token."""
        default = self.kind == "llama" or self.cut in _BEGIN
        return bool(self.flags.get("add_bos_token", default))


def build_tokenizer(header: Header) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file.

    Raises UnknownTokenizerError if the file describes no tokenizer, or one of an unknown kind.
    """
    vocabulary = _read_vocabulary(header)
    if vocabulary.kind == "gpt2":
        backend = _byte_level(vocabulary, _merges(header, set(vocabulary.tokens)))
    else:
        backend = _sentence_pieces(vocabulary, _scores(header))
    _add_tokens(backend, vocabulary)
    bos = vocabulary.special("bos")
    if bos is not None and vocabulary.begins:
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", bos, "$B"],
            special_tokens=[(bos, backend.token_to_id(bos))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=vocabulary.special("eos"),
        pad_token=vocabulary.special("padding"),
        unk_token=vocabulary.special("unknown"),
        add_bos_token=bos is not None and vocabulary.begins,
        add_eos_token=bool(vocabulary.flags.get("add_eos_token", False)),
        chat_template=header.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def _read_vocabulary(header: Header) -> Vocabulary:
    prefix = "tokenizer.ggml."
    flags = {
        name.removeprefix(prefix): setting.value
        for name, setting in header.settings.items()
        if name.startswith(prefix)
    }
    kind = flags.get("model")
    cut = flags.get("pre", "default")
    if f"{prefix}tokens" not in header.settings:
        raise UnknownTokenizerError("has no vocabulary")
    if kind not in ("gpt2", "llama"):
        raise UnknownTokenizerError(
            f"has a tokenizer of the kind '{kind}', which lamina does not know"
        )
    if kind == "gpt2" and cut not in _CUTS:
        raise UnknownTokenizerError(f"has the pre-tokenizer '{cut}', which lamina does not know")
    tokens = read_texts(header.settings[f"{prefix}tokens"])
    if len(set(tokens)) != len(tokens):
        repeated_token = next(token for token in tokens if tokens.count(token) > 1)
        raise UnknownTokenizerError(f"has the token '{repeated_token}' twice in its vocabulary")
    types = header.settings.get(f"{prefix}token_type")
    token_types = [1] * len(tokens) if types is None else read_numbers(types)
    return Vocabulary(kind, cut, tokens, token_types, flags)


def _merges(header: Header, tokens: set[str]) -> list[tuple[str, str]]:
    """The pairs of tokens that are merged, in order of priority."""
    name = "tokenizer.ggml.merges"
    if name not in header.settings:
        raise UnknownTokenizerError("has a byte-level vocabulary without merges")
    merges: list[tuple[str, str]] = []
    for merge in read_texts(header.settings[name]):
        boundary = merge.find(" ", 1)
        first = merge[:boundary]
        second = merge[boundary + 1 :]
        if not {first, second, first + second} <= tokens:
            raise UnknownTokenizerError(f"merges '{merge}', but not all of these are tokens")
        merges.append((first, second))
    return merges


def _scores(header: Header) -> list[float]:
    name = "tokenizer.ggml.scores"
    if name not in header.settings:
        raise UnknownTokenizerError("has a SentencePiece vocabulary without scores")
    return read_numbers(header.settings[name])


def _byte_level(vocabulary: Vocabulary, merges: list[tuple[str, str]]) -> Tokenizer:
    """Byte-pair encoding over bytes, each of which is spelled as a letter."""
    backend = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(vocabulary.tokens)},
            merges=merges,
            ignore_merges=vocabulary.cut in _WHOLE_WORDS,
        )
    )
    cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in _CUTS[vocabulary.cut]]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_pieces(vocabulary: Vocabulary, scores: list[float]) -> Tokenizer:
    """SentencePiece: the pair of neighbours whose token has the highest score is merged first.

    Spaces are letters here, and none is lost. Most vocabularies put an extra one before each text.
    """
    tokens = {token: index for index, token in enumerate(vocabulary.tokens)}
    has_bytes = all(f"<0x{byte:02X}>" in tokens for byte in range(256))
    backend = Tokenizer(
        models.BPE(
            vocab=tokens,
            merges=generate_merges(tokens, dict(zip(vocabulary.tokens, scores, strict=True))),
            unk_token=vocabulary.special("unknown"),
            fuse_unk=False,
            byte_fallback=has_bytes,
        )
    )
    begins_with_blank = bool(vocabulary.flags.get("add_space_prefix", True))
    steps: list[Any] = [normalizers.Replace(" ", _BLANK)]
    readable: list[Any] = [
        decoders.Replace(_BLANK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if begins_with_blank:
        steps.insert(0, normalizers.Prepend(_BLANK))
        readable.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(readable)
    return backend


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    """Add the tokens that are found before a text is cut: control and user-defined tokens."""
    typed = list(zip(vocabulary.tokens, vocabulary.token_types, strict=True))
    special = [token for token, kind in typed if kind in (_UNKNOWN, _CONTROL)]
    added = [token for token, kind in typed if kind == _USER_DEFINED]
    backend.add_special_tokens(
        [AddedToken(each, normalized=False, special=True) for each in special]
    )
    backend.add_tokens([AddedToken(each, normalized=False) for each in added])

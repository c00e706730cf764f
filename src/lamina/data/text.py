"""Text cut into the samples of a calibration."""

import logging
from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from lamina.data.calibrations import Row, Sample
from lamina.data.overlap import document_hash, runs
from lamina.errors import LaminaError

_logger = logging.getLogger(__name__)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a document as in the model's training: with BOS exactly if the tokenizer adds one."""
    return list(tokenizer(text, verbose=False)["input_ids"])


def check_ids(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int], vocabulary: int | None, what: str) -> None:
    """Refuse tokens of `what` that a model with embeddings of `vocabulary` tokens does not have, by a LaminaError."""
    beyond = next((token for token in ids if vocabulary is not None and token >= vocabulary), None)
    if beyond is not None:
        raise LaminaError(
            f"{what} holds {tokenizer.convert_ids_to_tokens(beyond)}, token {beyond} of the tokenizer, and the model "
            f"has embeddings of {vocabulary} tokens (0 to {(vocabulary or 0) - 1}). Take it out of the text, or out of "
            "the tokenizer (added_tokens), which has more tokens than the model."
        )


def text_samples(
    documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, vocabulary: int | None = None
) -> list[Sample]:
    """One sample per document: its first `length` tokens, each but the first predicted from those before it.

    Documents of fewer than two tokens are left out, and their number is logged.

    Raises
    ------
    LaminaError
        If a document holds a token that is not among the `vocabulary` of the model, or none has two tokens.
    """
    samples: list[Sample] = []
    for number, text in enumerate(documents):
        tokens = encode(tokenizer, text)[:length]
        check_ids(tokenizer, tokens, vocabulary, f"document {number} ('{text.strip()[:40]}…')")
        if len(tokens) >= 2:
            row = Row(tuple(tokens[:1]), tuple(tokens[1:]), len(text))
            samples.append(Sample(len(samples), "text", 0, (row,), document_hash(text), runs(text)))
    if not samples:
        raise LaminaError("text: no document has two tokens or more. Write a file with longer documents.")
    if short := len(documents) - len(samples):
        _logger.warning("%d of %d documents have fewer than two tokens and are left out.", short, len(documents))
    return samples

"""Text cut into the samples of a calibration."""

import logging
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from lamina.data.calibrations import Row, Sample
from lamina.data.overlap import document_hash, runs
from lamina.errors import LaminaError

_logger = logging.getLogger(__name__)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a document as in the model's training: with BOS exactly if the tokenizer adds one."""
    return list(tokenizer(text, verbose=False)["input_ids"])


def text_samples(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[Sample]:
    """One sample per document: its first `length` tokens, each but the first predicted from those before it.

    Documents of fewer than two tokens are left out, and their number is logged.
    """
    samples: list[Sample] = []
    for text in documents:
        tokens = encode(tokenizer, text)[:length]
        if len(tokens) >= 2:
            row = Row(tuple(tokens[:1]), tuple(tokens[1:]), len(text))
            samples.append(Sample(len(samples), "text", 0, (row,), document_hash(text), runs(text)))
    if not samples:
        raise LaminaError("text: no document has two tokens or more. Write a file with longer documents.")
    if short := len(documents) - len(samples):
        _logger.warning("%d of %d documents have fewer than two tokens and are left out.", short, len(documents))
    return samples

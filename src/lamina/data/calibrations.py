"""A calibration: tokenised samples on which units are scored and patches fitted. Never test data.

A sample has one row per answer choice (multiple choice) or one row (a generated answer, a text). A row is a context
and a continuation; only the continuation's tokens are scored, each predicted from everything before it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.store import parquet as store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METADATA_KEY = b"lamina.calibration"

_SCHEMA = pa.schema(
    [
        ("sample", pa.int64()),
        ("choice", pa.int64()),
        ("gold", pa.int64()),
        ("kind", pa.string()),
        ("context", pa.list_(pa.int32())),
        ("continuation", pa.list_(pa.int32())),
        ("characters", pa.int64()),
        ("cut", pa.int64()),
        ("right", pa.bool_()),
        ("limit", pa.int64()),
        ("document", pa.string()),
        ("runs", pa.list_(pa.uint64())),
    ]
)


@dataclass(frozen=True)
class Row:
    """One model input, as token ids."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    characters: int  # of the choice, as `acc_norm` counts
    cut: int = 0  # tokens of the context that found no room


@dataclass(frozen=True)
class Sample:
    """One document."""

    index: int
    kind: str  # choices, generated or text
    gold: int  # the index of the right row, whose loss is taken
    rows: tuple[Row, ...]
    document: str  # identifies the source text (a hash)
    runs: tuple[int, ...] = ()  # by which `lamina.data.overlap` finds near duplicates
    also: tuple[int, ...] = ()  # other right rows: each of them counts as a right answer
    limit: int | None = None  # tokens that the model reads at once, if rows were fitted to it

    @property
    def right(self) -> list[int]:
        """The indices of all right rows."""
        return sorted({self.gold, *self.also})

    @property
    def is_undecided(self) -> bool:
        """Whether a right row has the tokens of a wrong one, so that every model scores both the same."""
        tokens = [(row.context, row.continuation) for row in self.rows]
        wrong = {row for number, row in enumerate(tokens) if number not in self.right}
        return any(tokens[number] in wrong for number in self.right)

    def sequence(self) -> tuple[int, ...]:
        """Context and gold continuation, the tokens over which stream metrics and patches run.

        A row may have one token more than the model reads: its last one, which is only predicted.
        """
        row = self.rows[self.gold]
        return (row.context + row.continuation)[: self.limit]


@dataclass(frozen=True)
class Calibration:
    """Samples and the facts the tables report about them."""

    samples: tuple[Sample, ...]
    facts: dict[str, Any]

    def sequences(self) -> list[tuple[int, ...]]:
        """One token sequence per sample, in sample order."""
        return [sample.sequence() for sample in self.samples]


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Token ids of a document as in the model's training: with BOS exactly if the tokenizer adds one."""
    return list(tokenizer(text, verbose=False)["input_ids"])


def check_ids(
    tokenizer: "PreTrainedTokenizerBase", ids: Iterable[int], vocabulary: int | None, what: str
) -> None:
    """Refuse tokens of `what` that a model with embeddings of `vocabulary` tokens does not have, by a LaminaError."""
    if vocabulary is not None and (
        beyond := next((token for token in ids if token >= vocabulary), None)
    ):
        raise LaminaError(
            f"{what} holds {tokenizer.convert_ids_to_tokens(beyond)}, token {beyond} of the tokenizer, and the model "
            f"has embeddings of {vocabulary} tokens (0 to {vocabulary - 1}). Take it out of the text, or out of "
            "the tokenizer (added_tokens), which has more tokens than the model."
        )


def chance_accuracy(samples: Sequence[Sample], vocabulary: int) -> float:
    """r of FORMULAS: mean over samples of the share of right choices, 1/V for text, 0 for generated answers."""
    values = {"text": 1.0 / vocabulary, "generated": 0.0}
    return sum(values.get(s.kind, len(s.right) / len(s.rows)) for s in samples) / len(samples)


def build(samples: Sequence[Sample], vocabulary: int, **facts: Any) -> Calibration:
    """Put samples and their facts together; `facts` holds source, split, seed and the number of documents left out."""
    kinds = sorted({sample.kind for sample in samples})
    counted = {
        "kind": kinds[0] if len(kinds) == 1 else "mixed",
        "n_samples": len(samples),
        "n_tokens": sum(len(sample.sequence()) for sample in samples),
        "n_cut": sum(any(row.cut for row in sample.rows) for sample in samples),
        "n_undecided": 0,
        "chance_accuracy": chance_accuracy(samples, vocabulary),
    }
    return Calibration(tuple(samples), {**counted, **facts})


def write(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration; its facts go into the file's metadata."""
    rows = [
        {
            "sample": sample.index,
            "choice": number,
            "gold": sample.gold,
            "kind": sample.kind,
            **vars(row),
            "right": number in sample.right,
            "limit": sample.limit,
            "document": sample.document,
            "runs": sample.runs if number == 0 else (),
        }
        for sample in calibration.samples
        for number, row in enumerate(sample.rows)
    ]
    store.write(
        path,
        pa.Table.from_pylist(rows, schema=_SCHEMA),
        {"calibration": json.dumps(calibration.facts)},
    )


def read(path: str | Path, runs: bool = False) -> Calibration:
    """Read what `write` wrote, with or without the runs of samples.

    Raises LaminaError if it is damaged.
    """
    data = store.read(path, [field.name for field in _SCHEMA if runs or field.name != "runs"])
    with store.reading(path):
        facts = json.loads((data.schema.metadata or {})[METADATA_KEY])
    samples = []
    for index, group in groupby(data.to_pylist(), itemgetter("sample")):
        records = list(group)
        rows = tuple(
            Row(tuple(r["context"]), tuple(r["continuation"]), r["characters"], r["cut"])
            for r in records
        )
        also = tuple(n for n, r in enumerate(records) if r["right"] and n != r["gold"])
        kind, gold, document, limit = (
            records[0][name] for name in ("kind", "gold", "document", "limit")
        )
        samples.append(
            Sample(
                index, kind, gold, rows, document, tuple(records[0].get("runs", ())), also, limit
            )
        )
    return Calibration(tuple(samples), facts)

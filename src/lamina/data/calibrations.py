"""A calibration: tokenised samples on which units are scored and repairs fitted. Never test data.

A sample has one row for each answer choice, one for each right text of a generated answer, or a
single row for a text. A row is a context and a continuation; only the tokens of the continuation
are scored, each predicted from everything before it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lamina.errors import LaminaError
from lamina.store import parquet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METADATA_KEY = b"lamina.calibration"

# One record for each row of a sample.
_SCHEMA = pa.schema(
    [
        ("sample", pa.int64()),
        ("choice", pa.int64()),  # the index of the row in its sample
        ("gold", pa.int64()),
        ("kind", pa.string()),
        ("context", pa.list_(pa.int32())),
        ("continuation", pa.list_(pa.int32())),
        ("characters", pa.int64()),
        ("cut", pa.int64()),
        ("right", pa.bool_()),
        ("limit", pa.int64()),
        ("document", pa.string()),
        ("runs", pa.list_(pa.uint64())),  # of the first row; empty in the others
    ]
)


@dataclass(frozen=True)
class Row:
    """One model input, as token ids."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    characters: int
    """Length of the choice as `acc_norm` counts it."""
    cut: int = 0
    """Number of context tokens that were left out to fit the model's maximum length."""


@dataclass(frozen=True)
class Sample:
    """One document."""

    index: int
    kind: str
    """`choices`, `generated` or `text`."""
    gold: int
    """Index of the right row whose loss is measured."""
    rows: tuple[Row, ...]
    document: str
    """The identity of the source text (`lamina.data.overlap.document_hash`)."""
    runs: tuple[int, ...] = ()
    """The runs of words by which `lamina.data.overlap` finds near duplicates."""
    also: tuple[int, ...] = ()
    """Indices of further right rows; each counts as a right answer."""
    limit: int | None = None
    """The model's maximum input length in tokens, if the rows were fitted to it."""

    @property
    def right(self) -> list[int]:
        """The indices of all right rows."""
        return sorted({self.gold, *self.also})

    @property
    def is_undecided(self) -> bool:
        """Whether a right row has the same tokens as a wrong one: models score both alike."""
        right_indices = self.right
        tokens = [(row.context, row.continuation) for row in self.rows]
        wrong_tokens = {row for index, row in enumerate(tokens) if index not in right_indices}
        return any(tokens[index] in wrong_tokens for index in right_indices)

    def sequence(self) -> tuple[int, ...]:
        """Context and gold continuation: the tokens for stream metrics and patches.

        A row may have one token more than the model reads. Its last token, which is only predicted,
        is then left out.
        """
        row = self.rows[self.gold]
        return (row.context + row.continuation)[: self.limit]


@dataclass(frozen=True)
class CalibrationSamples:
    """Samples, and the facts that the tables report about them."""

    samples: tuple[Sample, ...]
    facts: dict[str, Any]

    def sequences(self) -> list[tuple[int, ...]]:
        """One token sequence per sample, in sample order."""
        return [sample.sequence() for sample in self.samples]


def encode_document(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Token ids of a document as in training: with BOS only if the tokenizer adds it."""
    return list(tokenizer(text, verbose=False)["input_ids"])


def check_ids(
    tokenizer: "PreTrainedTokenizerBase",
    token_ids: Iterable[int],
    vocabulary: int | None,
    location: str,
) -> None:
    """Refuse tokens that the model has no embedding for.

    vocabulary: The number of the model's embeddings; None if it is not known.
    location: What holds the tokens, for the message.

    Raises LaminaError that names the first such token.
    """
    if vocabulary is None:
        return
    for token_id in token_ids:
        if token_id >= vocabulary:
            raise LaminaError(
                f"{location} holds {tokenizer.convert_ids_to_tokens(token_id)}, token {token_id} "
                f"of the tokenizer, but the model has embeddings for only {vocabulary} tokens (0 "
                f"to {vocabulary - 1}). Remove it from the text, or from the tokenizer "
                "(added_tokens)."
            )


def chance_accuracy(samples: Sequence[Sample], vocabulary: int) -> float:
    """r of FORMULAS, a mean over samples.

    It is the share of right choices, 1/V for text, and 0 for generated answers.
    """
    chances: list[float] = []
    for sample in samples:
        if sample.kind == "text":
            chances.append(1.0 / vocabulary)
        elif sample.kind == "generated":
            chances.append(0.0)
        else:
            chances.append(len(sample.right) / len(sample.rows))
    return sum(chances) / len(samples)


def build_calibration(
    samples: Sequence[Sample], vocabulary: int, **facts: Any
) -> CalibrationSamples:
    """Build a calibration from samples, with the facts that can be counted from them.

    facts: `source`, `split`, `seed` and others that cannot be counted; they override counted ones.
    """
    kinds = sorted({sample.kind for sample in samples})
    counted = {
        "kind": kinds[0] if len(kinds) == 1 else "mixed",
        "n_samples": len(samples),
        "n_tokens": sum(len(sample.sequence()) for sample in samples),
        "n_cut": sum(any(row.cut for row in sample.rows) for sample in samples),
        "n_undecided": 0,
        "chance_accuracy": chance_accuracy(samples, vocabulary),
    }
    return CalibrationSamples(tuple(samples), counted | facts)


def write_calibration(
    path: str | Path,
    calibration: CalibrationSamples,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write a calibration; its facts and its provenance go into the file's metadata."""
    records: list[dict[str, Any]] = []
    for sample in calibration.samples:
        for row_index, row in enumerate(sample.rows):
            records.append(_make_record(sample, row_index, row))
    parquet.write_table(
        path,
        pa.Table.from_pylist(records, schema=_SCHEMA),
        {"calibration": json.dumps(calibration.facts), **(provenance or {})},
    )


def read_calibration(path: str | Path, runs: bool = False) -> CalibrationSamples:
    """Read what `write_calibration` wrote, with or without the runs of samples.

    Raises LaminaError if it is damaged.
    """
    columns = [field.name for field in _SCHEMA if runs or field.name != "runs"]
    table = parquet.read_table(path, columns)
    with parquet.explaining_damage(path):
        facts = json.loads((table.schema.metadata or {})[METADATA_KEY])
    samples = []
    for sample_index, records in groupby(table.to_pylist(), itemgetter("sample")):
        samples.append(_restore_sample(sample_index, list(records)))
    return CalibrationSamples(tuple(samples), facts)


def read_facts(path: str | Path) -> dict[str, Any]:
    """The facts of a calibration's file, without its samples.

    Raises LaminaError if it is damaged.
    """
    schema = parquet.read_table(path, ["sample"]).schema
    with parquet.explaining_damage(path):
        facts: dict[str, Any] = json.loads((schema.metadata or {})[METADATA_KEY])
    return facts


def _make_record(sample: Sample, row_index: int, row: Row) -> dict[str, Any]:
    return {
        "sample": sample.index,
        "choice": row_index,
        "gold": sample.gold,
        "kind": sample.kind,
        **vars(row),
        "right": row_index in sample.right,
        "limit": sample.limit,
        "document": sample.document,
        "runs": sample.runs if row_index == 0 else (),
    }


def _restore_sample(sample_index: int, records: Sequence[dict[str, Any]]) -> Sample:
    """A sample from the records of its rows."""
    first_record = records[0]
    gold = first_record["gold"]
    rows: list[Row] = []
    other_right: list[int] = []
    for row_index, record in enumerate(records):
        context = tuple(record["context"])
        continuation = tuple(record["continuation"])
        rows.append(Row(context, continuation, record["characters"], record["cut"]))
        if record["right"] and row_index != gold:
            other_right.append(row_index)
    return Sample(
        sample_index,
        first_record["kind"],
        gold,
        tuple(rows),
        document=first_record["document"],
        runs=tuple(first_record.get("runs", ())),
        also=tuple(other_right),
        limit=first_record["limit"],
    )

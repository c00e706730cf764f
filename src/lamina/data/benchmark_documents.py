"""Reads the documents that a benchmark scores, against which calibrations are checked."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from lamina.data import documents, lm_tasks
from lamina.data.overlap import document_hash, hash_word_runs
from lamina.options.benchmarks import PerplexityEntry, TaskEntry
from lamina.store import parquet


def read_benchmark_documents(
    name: str, entry: TaskEntry | PerplexityEntry, root: Path
) -> list[tuple[str, list[str]]]:
    """Question and choices of the documents that benchmark `name` scores; texts have no choices.

    Blank documents are among them if texts are joined.
    """
    if isinstance(entry, PerplexityEntry):
        texts = documents.perplexity_texts(entry, root, f"benchmarks.perplexity.{name}")
        return [(text, []) for text in texts]
    task = lm_tasks.load_task(name, root, None, entry.choices, trust_code=entry.trust_code)
    is_own = entry.choices is not None or lm_tasks.is_own(name, root)
    return lm_tasks.test_documents(task, entry.limit, is_own)


def tabulate_documents(tested: Sequence[tuple[str, Sequence[str]]], with_text: bool) -> pa.Table:
    """A row for each document: its hash, the hashes of its runs of words, and its characters.

    The hash of a blank document is null: it is a part of a joined text that no calibration could
    share.

    with_text: Whether the documents themselves are in column `text`.
    """
    hashes: list[str | None] = []
    runs_of_words: list[tuple[int, ...]] = []
    choice_lengths: list[list[int]] = []
    for text, choices in tested:
        is_blank = not text.strip() and not choices
        hashes.append(None if is_blank else document_hash(text, choices))
        runs_of_words.append(hash_word_runs(text, choices))
        choice_lengths.append([len(choice) for choice in choices])
    columns: dict[str, pa.Array] = {
        "document": pa.array(hashes, pa.string()),
        "runs": pa.array(runs_of_words, pa.list_(pa.uint64())),
        "question_characters": pa.array([len(text) for text, _ in tested], pa.int64()),
        "choice_characters": pa.array(choice_lengths, pa.list_(pa.int64())),
    }
    if with_text:
        columns["text"] = pa.array([text for text, _ in tested], pa.string())
    return pa.table(columns)


def read_texts(path: str | Path) -> list[str]:
    """The documents of a perplexity from the file that its job of rule prepare_task wrote."""
    texts: list[str] = parquet.read_table(path, ["text"])["text"].to_pylist()
    return texts

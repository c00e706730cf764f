"""Finds documents of a calibration that are documents of a benchmark.

Documents are compared by their words (`split_words`). Two documents with equal words are the same.
Otherwise runs of 13 words are compared, as is usual for contamination [GPT-3, arXiv 2005.14165,
appendix C]: two documents are near duplicates if they share at least half of the runs of the
shorter one. A single shared run may be a quotation, and is only counted.

Runs that do not identify their source are left out: those with fewer than 9 different words, and
those in more than 10 documents of one side, which are prompt templates.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from lamina.errors import LaminaError
from lamina.store import parquet

Document = tuple[str, Sequence[int]]
"""A document for comparison: its hash (`document_hash`) and its runs (`runs`)."""

RUN_LENGTH = 13  # words
FEWEST_DIFFERENT = 9  # words of a run
MOST_DOCUMENTS = 10  # that share a run which is not a template
# The share of a calibration that may be near duplicates of test documents, at least one document:
# natural splits hold a few.
MAX_NEAR_SHARE = 0.01
NEAR_SHARE = 0.5  # of the runs of the shorter document, which near duplicates have in common

# Punctuation by Unicode category, but words in formulas and code.
_SIGNS = frozenset("#%&*/\\@()[]{}‰")
# First and last characters of scripts that do not separate words by spaces.
_UNSPACED = (
    ("\u0e00", "\u0eff"),  # Thai, Lao
    ("\u0f00", "\u109f"),  # Tibetan, Myanmar
    ("\u1780", "\u17ff"),  # Khmer
    ("\u1950", "\u19df"),  # Tai Le, New Tai Lue
    ("\u1a20", "\u1aaf"),  # Tai Tham
    ("\u1b00", "\u1b7f"),  # Balinese
    ("\u2e80", "\u2fdf"),  # radicals
    ("\u3005", "\u3007"),  # iteration mark, zero
    ("\u3021", "\u312f"),  # numerals, Hiragana, Katakana, Bopomofo
    ("\u31a0", "\u31ff"),  # more of both
    ("\u3400", "\u4dbf"),  # Han
    ("\u4e00", "\u9fff"),
    ("\ua980", "\ua9df"),  # Javanese
    ("\ua9e0", "\ua9ff"),  # more of Myanmar
    ("\uaa60", "\uaadf"),  # more of Myanmar, Tai Viet
    ("\uf900", "\ufaff"),  # Han
    ("\U0001b000", "\U0001b16f"),  # Kana
    ("\U00020000", "\U0003ffff"),  # Han
)
# A run's hash is the sum of its words' codes, weighted by position, modulo 2^64. The weights are
# odd numbers that start no short cycle.
_POSITION_WEIGHTS = np.array(
    [pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(RUN_LENGTH)], dtype=np.uint64
)


@dataclass(frozen=True)
class Overlap:
    """How many documents of a calibration are in a benchmark.

    Each number includes those before it.
    """

    equal: int  # to a document of the benchmark
    near: int  # duplicates of one
    sharing: int  # a run with one

    def is_too_near(self, n_documents: int) -> bool:
        """Whether too many of the calibration's documents are near duplicates."""
        return self.near > max(1, MAX_NEAR_SHARE * n_documents)


class DocumentPairs(NamedTuple):
    """Pairs of documents that share a run: an array entry for each pair."""

    first: np.ndarray  # indices on the first side
    second: np.ndarray  # indices on the second side
    are_near: np.ndarray  # whether they are near duplicates


def split_words(text: str) -> list[str]:
    """The words by which documents are compared.

    They are in lower case, in NFKC form (which unifies full-width characters, for example), and
    without punctuation of any script. Signs such as + ( = are words, because sums, formulas and
    code may differ only in these. In scripts without spaces between words (Chinese, Japanese, Thai,
    Khmer, …) every character is a word.
    """
    # NFKC would turn an acute that stands for an apostrophe into an accent.
    normal = unicodedata.normalize("NFKC", text.replace("´", "'"))
    return normal.casefold().translate(_CHARACTER_TABLE).split()


def document_hash(text: str, choices: Sequence[str] = ()) -> str:
    """The identity of a document.

    Documents that differ in case, white space, punctuation or the order of their choices have the
    same identity.
    """
    question = _normalise(text)
    answers = sorted(_normalise(choice) for choice in choices)
    return hashlib.sha256("\x1f".join([question, *answers]).encode()).hexdigest()


def _normalise(text: str) -> str:
    """A text as its words; a text of only punctuation stays as it is, except for white space."""
    return " ".join(split_words(text)) or " ".join(text.split())


def hash_word_runs(text: str, choices: Sequence[str] = ()) -> tuple[int, ...]:
    """Hashes (64 bits) of the runs of words in a document, sorted.

    For a question, these are the runs of the question followed by each of its choices.
    """
    hashes: set[int] = set()
    for ending in choices or ("",):
        codes = np.array(
            [_word_code(word) for word in split_words(f"{text} {ending}")], dtype=np.uint64
        )
        if len(codes) < RUN_LENGTH:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(codes, RUN_LENGTH)
        ordered = np.sort(windows, axis=1)
        n_different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
        window_hashes = (windows * _POSITION_WEIGHTS).sum(axis=1, dtype=np.uint64)
        hashes.update(window_hashes[n_different >= FEWEST_DIFFERENT].tolist())
    return tuple(sorted(hashes))


def read_overlap_documents(path: str | Path) -> list[Document]:
    """The documents of a calibration or of a test as the workflow keeps them, each once."""
    runs_by_document: dict[str, Sequence[int]] = {}
    for row in parquet.read_table(path, ["document", "runs"]).to_pylist():
        if row["document"] is not None:
            # Only the first row of a question holds its word runs.
            runs_by_document.setdefault(row["document"], row["runs"])
    return list(runs_by_document.items())


def count_shared_documents(
    calibration: Sequence[Document], benchmark: Sequence[Document]
) -> Overlap:
    """Count the documents of a calibration that are in a benchmark."""
    benchmark_hashes = {document for document, _ in benchmark}
    is_equal = np.array([document in benchmark_hashes for document, _ in calibration], dtype=bool)
    found = find_shared_pairs(calibration, benchmark)

    is_near = is_equal.copy()
    is_near[found.first[found.are_near]] = True
    is_sharing = is_equal.copy()
    is_sharing[found.first] = True
    return Overlap(int(is_equal.sum()), int(is_near.sum()), int(is_sharing.sum()))


def check_overlap(
    calibration_name: str,
    calibration: Sequence[Document],
    benchmark_name: str,
    benchmark: Sequence[Document],
) -> Overlap:
    """Count the documents that a calibration shares with a benchmark, each given once.

    Raises LaminaError if there are test documents among them, or too many near duplicates.
    """
    shared = count_shared_documents(calibration, benchmark)
    counts = (
        f"of its {len(calibration)} documents with the {len(benchmark)} test documents of "
        f"benchmark '{benchmark_name}'"
    )
    remedy = "Calibrate on another split, or on documents that the benchmark does not use."
    if shared.equal:
        raise LaminaError(
            f"calibrations.{calibration_name} shares {shared.equal} {counts}: a score on seen "
            f"documents says nothing. {remedy}"
        )
    if shared.is_too_near(len(calibration)):
        raise LaminaError(
            f"calibrations.{calibration_name} shares at least half of the text of {shared.near} "
            f"{counts}, which is more than {MAX_NEAR_SHARE:.0%}: they differ by a few words. "
            f"{remedy}"
        )
    return shared


def find_shared_pairs(
    first_side: Sequence[Document], second_side: Sequence[Document]
) -> DocumentPairs:
    """All pairs of a document of each side that share a run."""
    table = _tabulate_runs([*first_side, *second_side])
    first_table = table[: len(first_side)]
    second_table = table[len(first_side) :]

    # A run is a template if it is frequent on either side.
    most_frequent = np.maximum(first_table.sum(axis=0), second_table.sum(axis=0))
    counted_runs = np.flatnonzero(most_frequent <= MOST_DOCUMENTS)
    first_table = first_table[:, counted_runs]
    second_table = second_table[:, counted_runs]

    n_shared = (first_table @ second_table.T).tocoo()
    first, second = n_shared.coords
    n_runs_of_shorter = np.minimum(first_table.sum(axis=1)[first], second_table.sum(axis=1)[second])
    return DocumentPairs(first, second, n_shared.data >= NEAR_SHARE * n_runs_of_shorter)


def group_near_duplicates(documents: Sequence[Document]) -> list[int]:
    """The group of each document: equal ones and near duplicates, directly or through others."""
    pairs = find_shared_pairs(documents, documents)
    first = pairs.first[pairs.are_near].tolist()
    second = pairs.second[pairs.are_near].tolist()

    # Equal documents may have too few words for a run.
    index_by_hash: dict[str, int] = {}
    for index, (document, _) in enumerate(documents):
        first.append(index_by_hash.setdefault(document, index))
        second.append(index)
    n_documents = len(documents)
    are_near = coo_array((np.ones(len(first)), (first, second)), (n_documents, n_documents))
    _, group_by_document = connected_components(are_near, directed=False)
    return [int(group) for group in group_by_document]


def _tabulate_runs(documents: Sequence[Document]) -> csr_array:
    """Ones and zeros: whether a document (row) has a run (column)."""
    run_lists = [document_runs for _, document_runs in documents]
    row_ends = np.cumsum([0, *map(len, run_lists)])
    all_runs = list(chain.from_iterable(run_lists))
    different_runs, columns = np.unique(np.array(all_runs, dtype=np.uint64), return_inverse=True)
    ones = np.ones(row_ends[-1], dtype=np.int64)  # a document has each run once
    shape = (len(documents), len(different_runs))
    return csr_array((ones, columns, row_ends), shape=shape)


@lru_cache(maxsize=1 << 18)
def _word_code(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


class _CharacterTable(dict[int, str]):
    """The replacement of a character, by its code point, before a text is split at spaces.

    Entries are made when a character first occurs.
    """

    def __missing__(self, code: int) -> str:
        self[code] = _separate(chr(code))
        return self[code]


def _separate(character: str) -> str:
    """A letter as it is, a one-character word between spaces, a space for punctuation."""
    category = unicodedata.category(character)
    if category == "Cf" or unicodedata.name(character, "").startswith("VARIATION SELECTOR"):
        return ""  # invisible: soft hyphens, joiners, directions, the look of an emoji
    if character in _SIGNS:
        return f" {character} "
    if category[0] == "Z" or category == "Cc" or character == "`":
        return " "
    if category[0] == "P" and character != "_":
        return " "
    is_symbol = category[0] == "S"
    is_unspaced = any(first <= character <= last for first, last in _UNSPACED)
    return f" {character} " if is_symbol or is_unspaced else character


_CHARACTER_TABLE = _CharacterTable()

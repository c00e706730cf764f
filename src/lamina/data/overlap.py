"""Which documents of a calibration are documents of a benchmark: equal ones, near duplicates, and shared passages.

Two documents are compared by their words: lower case, without marks that only punctuate. Signs such as + ( = are words,
since sums, formulas and code differ by nothing else. Documents with equal words are the same. Otherwise runs of 13
words are compared, as is usual for contamination [GPT-3, arXiv 2005.14165, appendix C]: two documents are near
duplicates if they share at least half of the runs of the shorter one. One run alone may be a quotation, and is only
counted. Some runs do not show where they come from and are left out: those of fewer than 9 different words, and those
in more than 10 documents of one side, which are templates of prompts.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

Document = tuple[str, Sequence[int]]  # its hash, and its runs

RUN, DIFFERENT, TEMPLATE = 13, 9, 10
# Share of the runs of the shorter document that near duplicates have in common.
NEAR = 0.5
_WORD = re.compile(r"\w+|[^\w\s.,;:!?\"'`´“”‘’«»…—–-]")
# Weights of a run's places: odd numbers that begin no short cycle, modulo 2^64.
_PLACES = np.array(
    [pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(RUN)], dtype=np.uint64
)


@dataclass(frozen=True)
class Overlap:
    """How many documents of a calibration are in a benchmark. Each number includes those before it."""

    equal: int  # to one of them
    near: int  # duplicates of one
    sharing: int  # a run with one


def words(text: str) -> list[str]:
    """The words by which documents are compared."""
    return _WORD.findall(text.casefold())


def document_hash(text: str, choices: Sequence[str] = ()) -> str:
    """Identity of a document: case, white space, punctuation and the order of choices do not make it another one."""
    question, *answers = (
        " ".join(words(part)) or " ".join(part.split()) for part in (text, *choices)
    )
    return hashlib.sha256("\x1f".join([question, *sorted(answers)]).encode()).hexdigest()


def runs(text: str, choices: Sequence[str] = ()) -> tuple[int, ...]:
    """Hashes (64 bits) of the runs of words in a document, or in a question followed by each of its choices, sorted."""
    hashes: set[int] = set()
    for tail in choices or ("",):
        coded = np.array([_code(word) for word in words(f"{text} {tail}")], dtype=np.uint64)
        if len(coded) >= RUN:
            windows = np.lib.stride_tricks.sliding_window_view(coded, RUN)
            ordered = np.sort(windows, axis=1)
            different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
            hashes.update(
                (windows * _PLACES).sum(axis=1, dtype=np.uint64)[different >= DIFFERENT].tolist()
            )
    return tuple(sorted(hashes))


def compare(used: Sequence[Document], tested: Sequence[Document]) -> Overlap:
    """Documents of a calibration (`used`) against those of a benchmark."""
    hashes = {document for document, _ in tested}
    equal = np.array([document in hashes for document, _ in used], dtype=bool)
    one, _, near = pairs(used, tested)
    alike, sharing = equal.copy(), equal.copy()
    sharing[one] = True
    alike[one[near]] = True
    return Overlap(int(equal.sum()), int(alike.sum()), int(sharing.sum()))


def pairs(
    used: Sequence[Document], tested: Sequence[Document]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of documents that share a run, by their numbers, and whether they are near duplicates."""
    hashes = [each for _, each in (*used, *tested)]
    ends = np.cumsum([0, *map(len, hashes)])
    runs, columns = np.unique(
        np.array([run for each in hashes for run in each], dtype=np.uint64), return_inverse=True
    )
    # A row for each document and a column for each run. A document has each run once.
    table = csr_array(
        (np.ones(ends[-1], dtype=np.int64), columns, ends), shape=(len(hashes), len(runs))
    )
    mine, theirs = table[: len(used)], table[len(used) :]
    # A run is a template if it is frequent on either side.
    telling = np.flatnonzero(np.maximum(mine.sum(axis=0), theirs.sum(axis=0)) <= TEMPLATE)
    mine, theirs = mine[:, telling], theirs[:, telling]
    common = (mine @ theirs.T).tocoo()
    one, other = common.coords
    return (
        one,
        other,
        common.data >= NEAR * np.minimum(mine.sum(axis=1)[one], theirs.sum(axis=1)[other]),
    )


@lru_cache(maxsize=1 << 18)
def _code(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")

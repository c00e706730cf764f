"""Which documents of a calibration are documents of a benchmark: equal ones, near duplicates, and shared passages.

Two documents are compared by their words: lower case, full-width and other compatible forms as the usual ones (NFKC),
without marks that only punctuate, of any script. Signs such as + ( = are words, since sums, formulas and code differ by
nothing else. Scripts that write no blanks between words (Chinese, Japanese, Thai, Khmer, …) have their characters as
words. Documents with equal words are the same. Otherwise runs of 13
words are compared, as is usual for contamination [GPT-3, arXiv 2005.14165, appendix C]: two documents are near
duplicates if they share at least half of the runs of the shorter one. One run alone may be a quotation, and is only
counted. Some runs do not show where they come from and are left out: those of fewer than 9 different words, and those
in more than 10 documents of one side, which are templates of prompts.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

Document = tuple[str, Sequence[int]]  # its hash, and its runs

RUN, DIFFERENT, TEMPLATE = 13, 9, 10
# Share of the runs of the shorter document that near duplicates have in common.
NEAR = 0.5
# Punctuation by its category in Unicode, and yet told apart in formulas and code.
_SIGNS = frozenset("#%&*/\\@()[]{}‰")
# First and last characters of scripts without blanks between words.
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


class _Separated(dict[int, str]):
    """What stands for a character, by its code, before a text is split at blanks; found when it first occurs."""

    def __missing__(self, code: int) -> str:
        self[code] = _separated(chr(code))
        return self[code]


def _separated(character: str) -> str:
    """A letter as it is, a word of one character between blanks, and blanks for what only punctuates."""
    category = unicodedata.category(character)
    if category == "Cf" or unicodedata.name(character, "").startswith("VARIATION SELECTOR"):
        return ""  # invisible: soft hyphens, joiners, directions, the look of an emoji
    if character in _SIGNS:
        return f" {character} "
    if category[0] == "Z" or category == "Cc" or character == "`":
        return " "
    if category[0] == "P" and character != "_":
        return " "
    is_unspaced = any(first <= character <= last for first, last in _UNSPACED)
    return f" {character} " if category[0] == "S" or is_unspaced else character


_SEPARATED = _Separated()


def words(text: str) -> list[str]:
    """The words by which documents are compared."""
    # NFKC would make an accent of an acute that stands for an apostrophe.
    normal = unicodedata.normalize("NFKC", text.replace("´", "'"))
    return normal.casefold().translate(_SEPARATED).split()


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

"""Which documents of a calibration are test documents, found against a plain comparison of sets of words."""

import random

import numpy as np
import pytest

from lamina.data.overlap import Overlap, compare, document_hash, runs, words
from tools.smollm2_data import groups

TEXT = (
    "The quick brown fox jumps over the lazy dog while seventeen grey herons watch from a bridge "
    "that was built of red stone before anyone here was born."
)
VOCABULARY = [f"word{number}" for number in range(400)]


def known(*texts: str, choices: tuple[str, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    return [(document_hash(text, choices), runs(text, choices)) for text in texts]


@pytest.mark.parametrize(
    "other",
    [
        TEXT.upper(),
        TEXT + " .",
        "  " + TEXT.replace(" fox", "  fox,"),
        TEXT.replace("bridge", "“bridge”"),
    ],
)
def test_case_white_space_and_punctuation_make_no_other_document(other: str) -> None:
    assert document_hash(other) == document_hash(TEXT)
    assert compare(known(other), known(TEXT)) == Overlap(1, 1, 1)


def test_a_few_other_words_make_a_near_duplicate_and_a_quotation_none() -> None:
    near = TEXT.replace("was born", "was old")
    quoting = (
        "Yesterday "
        + " ".join(TEXT.split()[14:28])
        + " and many more things happened that nobody wrote down"
    )
    other = " ".join(reversed(TEXT.split()))
    assert compare(known(near, quoting, other), known(TEXT)) == Overlap(0, 1, 2)


def test_questions_are_compared_with_their_choices() -> None:
    question = "Which of these would a careful person take along on a walk in the rain"
    one = (document_hash(question, ["a coat", "a lamp"]), runs(question, ["a coat", "a lamp"]))
    other = (document_hash(question, ["a lamp", "a kite"]), runs(question, ["a lamp", "a kite"]))
    assert compare([one], [other]) == Overlap(0, 1, 1)
    turned = (document_hash(question, ["a lamp", "a coat"]), runs(question, ["a lamp", "a coat"]))
    assert compare([one], [turned]).equal == 1


def test_what_stands_in_every_prompt_is_a_template() -> None:
    prompt = "Read the passage below with care and then answer the question that follows after it :"
    texts = [f"{prompt} tail{n}" for n in range(40)]
    assert compare(known(*texts[:20]), known(*texts[20:])) == Overlap(0, 0, 0)
    assert compare(known(*texts[:3]), known(*texts[20:22])).sharing == 3


def test_the_counts_are_those_of_plain_sets_of_words() -> None:
    draw = random.Random(0)
    passages = [draw.choices(VOCABULARY, k=draw.randint(10, 30)) for _ in range(12)]
    sides = [[" ".join(sum(draw.sample(passages, 2), [])) for _ in range(40)] for _ in range(2)]

    def grams(text: str) -> set[tuple[str, ...]]:
        found = [tuple(words(text)[start : start + 13]) for start in range(len(words(text)) - 12)]
        return {run for run in found if len(set(run)) >= 9}

    of = [[grams(text) for text in side] for side in sides]
    often = {
        run for side in of for run in set().union(*side) if sum(run in each for each in side) > 10
    }
    of = [[each - often for each in side] for side in of]
    common = np.array([[len(a & b) for b in of[1]] for a in of[0]])
    least = np.array([[min(len(a), len(b)) for b in of[1]] for a in of[0]])
    equal = np.array([text in sides[1] for text in sides[0]])
    near = equal | ((common > 0) & (common >= 0.5 * least)).any(axis=1)
    sharing = equal | (common > 0).any(axis=1)
    found = compare(*(known(*side) for side in sides))
    assert found == Overlap(int(equal.sum()), int(near.sum()), int(sharing.sum()))
    assert 0 < found.near < found.sharing < 40


def test_near_duplicates_are_one_group() -> None:
    near, further = (
        TEXT.replace("was born", "was old"),
        TEXT.replace("The quick brown", "A very slow"),
    )
    found = groups(known(TEXT, "something else", near, TEXT + "!", further, "something, else"))
    assert found[0] == found[2] == found[3] == found[4] and found[1] == found[5] != found[0]

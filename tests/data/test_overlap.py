"""Which documents of a calibration are test documents, found against a plain comparison of sets of words."""

import random

import numpy as np
import pytest

from lamina.data.overlap import (
    Overlap,
    count_shared_documents,
    document_hash,
    hash_word_runs,
    split_words,
)
from tools.smollm2_data import groups

TEXT = (
    "The quick brown fox jumps over the lazy dog while seventeen grey herons watch from a bridge "
    "that was built of red stone before anyone here was born."
)
VOCABULARY = [f"word{number}" for number in range(400)]


def known(*texts: str, choices: tuple[str, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    return [(document_hash(text, choices), hash_word_runs(text, choices)) for text in texts]


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
    assert count_shared_documents(known(other), known(TEXT)) == Overlap(1, 1, 1)


OTHER_SCRIPTS = {
    "Chinese": (
        "村里的磨坊建在河边，老磨工每天清晨打开水闸，让水轮慢慢转动，把农民送来的麦子磨成面粉。",
        "村里的磨坊建在河边,老磨工每天清晨打开水闸,让水轮慢慢转动,把农民送来的麦子磨成面粉.",
        ("面粉", "细粉"),
    ),
    "Japanese": (
        "村の水車小屋は川のそばにあり、年老いた粉ひきは毎朝早く水門を開けて、麦を粉にします。",
        "「村の水車小屋は川のそばにあり､年老いた粉ひきは毎朝早く水門を開けて､麦を粉にします｡」",
        ("します", "挽きます"),
    ),
    "Thai": (
        "โรงสีเก่าของหมู่บ้านตั้งอยู่ริมแม่น้ำ คนสีข้าวเปิดประตูน้ำทุกเช้าเพื่อให้กังหันหมุน",
        "โรงสีเก่าของหมู่บ้านตั้งอยู่ริมแม่น้ำ; คนสีข้าวเปิดประตูน้ำทุกเช้าเพื่อให้กังหันหมุน!",
        ("หมุน", "เดิน"),
    ),
    "Arabic": (
        "تقع الطاحونة القديمة في القرية على ضفة النهر، ويفتح الطحان بوابة الماء كل صباح ليدور "
        "الدولاب ويطحن القمح الذي يجلبه الفلاحون من الحقول البعيدة في عرباتهم الثقيلة.",
        "تقع الطاحونة القديمة في القرية على ضفة النهر, ويفتح الطحان بوابة الماء كل صباح ليدور "
        "الدولاب ويطحن القمح الذي يجلبه الفلاحون من الحقول البعيدة في عرباتهم الثقيلة؟",
        ("الثقيلة", "الكبيرة"),
    ),
    "Hindi": (
        "गाँव की पुरानी चक्की नदी के किनारे बनी है और बूढ़ा चक्कीवाला हर सुबह पानी का फाटक खोलकर किसानों का "
        "लाया हुआ गेहूँ धीरे धीरे पीसता है।",
        "गाँव की पुरानी चक्की, नदी के किनारे बनी है; और बूढ़ा चक्कीवाला हर सुबह पानी का फाटक खोलकर किसानों का "
        "लाया हुआ गेहूँ धीरे धीरे पीसता है.",
        ("पीसता", "बेचता"),
    ),
    "full-width": (
        "Ｔｈｅ ｍｉｌｌ ｏｆ ｔｈｅ ｖｉｌｌａｇｅ ｓｔａｎｄｓ ｂｙ ａ ｒｉｖｅｒ， and an old miller opens "
        "its gate each day before any farmer brings wheat！",
        "The mill of the village stands by a river, and an old miller opens its gate each day "
        "before any farmer brings wheat.",
        ("wheat", "barley"),
    ),
}


@pytest.mark.parametrize("script", OTHER_SCRIPTS)
def test_documents_of_other_scripts_are_compared_as_english_ones(script: str) -> None:
    """Other marks make no other document, and another word at the end makes a near duplicate."""
    text, with_other_marks, (word, other_word) = OTHER_SCRIPTS[script]
    assert word in text
    assert count_shared_documents(known(with_other_marks), known(text)) == Overlap(1, 1, 1)
    assert count_shared_documents(known(text.replace(word, other_word)), known(text)) == Overlap(
        0, 1, 1
    )
    others = [each for name, (each, _, _) in OTHER_SCRIPTS.items() if name != script]
    assert count_shared_documents(known(text), known(*others)) == Overlap(0, 0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x² + y_1 (a) = 3.5", ["x2", "+", "y_1", "(", "a", ")", "=", "3", "5"]),
        ("don't `print` l´acqua", ["don", "t", "print", "l", "acqua"]),
        ("हिन्दी में।", ["हिन्दी", "में"]),
        ("東京Tower、2棟", ["東", "京", "tower", "2", "棟"]),
        ("soft\u00adhyphen \u2764\ufe0f", ["softhyphen", "\u2764"]),
    ],
)
def test_words_by_hand(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


def test_a_few_other_words_make_a_near_duplicate_and_a_quotation_none() -> None:
    near = TEXT.replace("was born", "was old")
    quoting = (
        "Yesterday "
        + " ".join(TEXT.split()[14:28])
        + " and many more things happened that nobody wrote down"
    )
    other = " ".join(reversed(TEXT.split()))
    assert count_shared_documents(known(near, quoting, other), known(TEXT)) == Overlap(0, 1, 2)


def test_questions_are_compared_with_their_choices() -> None:
    question = "Which of these would a careful person take along on a walk in the rain"
    one = (
        document_hash(question, ["a coat", "a lamp"]),
        hash_word_runs(question, ["a coat", "a lamp"]),
    )
    other = (
        document_hash(question, ["a lamp", "a kite"]),
        hash_word_runs(question, ["a lamp", "a kite"]),
    )
    assert count_shared_documents([one], [other]) == Overlap(0, 1, 1)
    turned = (
        document_hash(question, ["a lamp", "a coat"]),
        hash_word_runs(question, ["a lamp", "a coat"]),
    )
    assert count_shared_documents([one], [turned]).equal == 1


def test_what_stands_in_every_prompt_is_a_template() -> None:
    prompt = "Read the passage below with care and then answer the question that follows after it :"
    texts = [f"{prompt} tail{n}" for n in range(40)]
    assert count_shared_documents(known(*texts[:20]), known(*texts[20:])) == Overlap(0, 0, 0)
    assert count_shared_documents(known(*texts[:3]), known(*texts[20:22])).sharing == 3


def test_the_counts_are_those_of_plain_sets_of_words() -> None:
    draw = random.Random(0)
    passages = [draw.choices(VOCABULARY, k=draw.randint(10, 30)) for _ in range(12)]
    sides = [[" ".join(sum(draw.sample(passages, 2), [])) for _ in range(40)] for _ in range(2)]

    def grams(text: str) -> set[tuple[str, ...]]:
        found = [
            tuple(split_words(text)[start : start + 13])
            for start in range(len(split_words(text)) - 12)
        ]
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
    found = count_shared_documents(*(known(*side) for side in sides))
    assert found == Overlap(int(equal.sum()), int(near.sum()), int(sharing.sum()))
    assert 0 < found.near < found.sharing < 40


def test_near_duplicates_are_one_group() -> None:
    near, further = (
        TEXT.replace("was born", "was old"),
        TEXT.replace("The quick brown", "A very slow"),
    )
    found = groups(known(TEXT, "something else", near, TEXT + "!", further, "something, else"))
    assert found[0] == found[2] == found[3] == found[4] and found[1] == found[5] != found[0]

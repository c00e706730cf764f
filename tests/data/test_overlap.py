"""Which documents of a calibration are test documents, against plain sets of words."""

import random
from collections.abc import Sequence

import pytest

from lamina.data.overlap import (
    Overlap,
    check_overlap,
    count_shared_documents,
    document_hash,
    hash_word_runs,
    split_words,
)
from lamina.errors import LaminaError
from tools.cut_data import groups

TEXT = (
    "The quick brown fox jumps over the lazy dog while seventeen grey herons watch from a bridge "
    "that was built of red stone before anyone here was born."
)
VOCABULARY = [f"word{number}" for number in range(400)]


Fingerprint = tuple[str, tuple[int, ...]]


def fingerprint(text: str, choices: Sequence[str] = ()) -> Fingerprint:
    """What the check keeps of a document: hashes of all of it and of its runs of words."""
    return document_hash(text, choices), hash_word_runs(text, choices)


def fingerprints(*texts: str) -> list[Fingerprint]:
    return [fingerprint(text) for text in texts]


@pytest.mark.parametrize(
    "same_text",
    [
        TEXT.upper(),
        TEXT + " .",
        "  " + TEXT.replace(" fox", "  fox,"),
        TEXT.replace("bridge", "“bridge”"),
    ],
    ids=["case", "full stop", "white space and comma", "quotation marks"],
)
def test_case_white_space_and_punctuation_make_no_other_document(same_text: str) -> None:
    assert document_hash(same_text) == document_hash(TEXT)
    overlap = count_shared_documents(fingerprints(same_text), fingerprints(TEXT))
    assert overlap == Overlap(equal=1, near=1, sharing=1)


def test_one_near_duplicate_is_counted_and_two_are_refused() -> None:
    """Also where one is more than 1 % of the calibration."""
    near_duplicates = [TEXT.replace("was born", "was old"), TEXT.replace("The quick", "A slow")]
    known = fingerprints(TEXT)

    shared = check_overlap(
        "mine", fingerprints("Something else.", near_duplicates[0]), "test", known
    )

    assert shared == Overlap(equal=0, near=1, sharing=1)
    with pytest.raises(LaminaError, match="half of the text of 2 of its 2 documents"):
        check_overlap("mine", fingerprints(*near_duplicates), "test", known)


# A text, the same with other punctuation, and a word of it with another one to put there.
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
    """Other punctuation makes no other document; another word at the end makes a near duplicate."""
    text, repunctuated_text, (word, other_word) = OTHER_SCRIPTS[script]
    assert word in text
    changed_text = text.replace(word, other_word)
    foreign_texts = [texts[0] for name, texts in OTHER_SCRIPTS.items() if name != script]
    known = fingerprints(text)

    equal = count_shared_documents(fingerprints(repunctuated_text), known)
    near = count_shared_documents(fingerprints(changed_text), known)
    foreign = count_shared_documents(known, fingerprints(*foreign_texts))

    assert equal == Overlap(equal=1, near=1, sharing=1)
    assert near == Overlap(equal=0, near=1, sharing=1)
    assert foreign == Overlap(equal=0, near=0, sharing=0)


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


def test_a_few_other_words_make_a_near_duplicate_and_a_quotation_makes_none() -> None:
    near_duplicate = TEXT.replace("was born", "was old")
    passage = " ".join(TEXT.split()[14:28])
    quotation = f"Yesterday {passage} and many more things happened that nobody wrote down"
    reversed_text = " ".join(reversed(TEXT.split()))

    overlap = count_shared_documents(
        fingerprints(near_duplicate, quotation, reversed_text), fingerprints(TEXT)
    )

    assert overlap == Overlap(equal=0, near=1, sharing=2)


def test_questions_are_compared_with_their_choices() -> None:
    text = "Which of these would a careful person take along on a walk in the rain"
    question = fingerprint(text, ["a coat", "a lamp"])
    other_choice = fingerprint(text, ["a lamp", "a kite"])
    other_order = fingerprint(text, ["a lamp", "a coat"])

    assert count_shared_documents([question], [other_choice]) == Overlap(0, 1, 1)
    assert count_shared_documents([question], [other_order]).equal == 1


def test_what_stands_in_every_prompt_is_a_template() -> None:
    prompt = "Read the passage below with care and then answer the question that follows after it :"
    known = fingerprints(*(f"{prompt} tail{number}" for number in range(40)))

    assert count_shared_documents(known[:20], known[20:]) == Overlap(0, 0, 0)
    assert count_shared_documents(known[:3], known[20:22]).sharing == 3


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Runs of 13 words of which at least 9 differ."""
    words = split_words(text)
    runs = {tuple(words[start : start + 13]) for start in range(len(words) - 12)}
    return {run for run in runs if len(set(run)) >= 9}


def frequent_runs(documents: list[set[tuple[str, ...]]]) -> set[tuple[str, ...]]:
    """Runs that stand in more than ten documents of one side: a template."""
    all_runs = set().union(*documents)
    return {run for run in all_runs if sum(run in document for document in documents) > 10}


def test_the_counts_are_those_of_plain_sets_of_words() -> None:
    generator = random.Random(0)
    passages = [generator.choices(VOCABULARY, k=generator.randint(10, 30)) for _ in range(12)]

    def random_texts() -> list[str]:
        pairs = [generator.sample(passages, 2) for _ in range(40)]
        return [" ".join(first + second) for first, second in pairs]

    calibration_texts = random_texts()
    test_texts = random_texts()
    overlap = count_shared_documents(fingerprints(*calibration_texts), fingerprints(*test_texts))

    calibration_runs = [word_runs(text) for text in calibration_texts]
    test_runs = [word_runs(text) for text in test_texts]
    template = frequent_runs(calibration_runs) | frequent_runs(test_runs)
    n_equal = 0
    n_near = 0
    n_sharing = 0
    for text, runs in zip(calibration_texts, calibration_runs, strict=True):
        is_near = False
        is_sharing = False
        for other_runs in test_runs:
            own = runs - template
            other = other_runs - template
            n_common = len(own & other)
            is_sharing |= n_common > 0
            is_near |= n_common > 0 and n_common >= 0.5 * min(len(own), len(other))
        is_equal = text in test_texts
        n_equal += is_equal
        n_near += is_equal or is_near
        n_sharing += is_equal or is_sharing
    assert overlap == Overlap(n_equal, n_near, n_sharing)
    assert 0 < overlap.near < overlap.sharing < 40


def test_near_duplicates_are_one_group() -> None:
    near_duplicate = TEXT.replace("was born", "was old")
    other_near_duplicate = TEXT.replace("The quick brown", "A very slow")
    texts = [
        TEXT,
        "something else",
        near_duplicate,
        TEXT + "!",
        other_near_duplicate,
        "something, else",
    ]

    group_of = groups(fingerprints(*texts))

    assert group_of[0] == group_of[2] == group_of[3] == group_of[4]
    assert group_of[1] == group_of[5]
    assert group_of[0] != group_of[1]

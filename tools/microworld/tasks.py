"""The microworld's tasks: one seeded generator per task, in plain Python.

A generator takes ``(world, rng, split, level)`` and returns one document of that split. Every document has a canonical
key, and a hash of that key alone decides its split, so no document can be generated into two splits. ``level`` in
(0, 1] scales the difficulty for a training curriculum; committed documents are all of level 1.

Multiple choice: ``{"query": str, "choices": [str, ...], "gold": int}``.
Generated answer: ``{"query": str, "answer": str}``.
Every token is separated by one blank: words, digits and signs are the vocabulary.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Document = dict[str, Any]

SPLITS = ("train", "validation", "test")
RELATIONS = ("boss", "teacher", "home", "job", "pet")
LINKS = ("boss", "teacher")
ATTRIBUTES = ("home", "job", "pet")
N_PEOPLE = 104
FOLLOWERS = 8  # people that share one boss (or teacher); of each such group 5 pairs train, 1 validates, 2 test
LONGEST_EXPRESSION = 35  # tokens of a boolean expression
MODULUS = 1000  # sums are modulo this number

# Some values have two tokens, so that choices of one document differ in length.
VALUES = {
    "home": "alder birch port_birch cedar elm port_elm fir hazel port_hazel larch maple port_maple oak pine port_pine "
    "rowan spruce port_spruce willow yew",
    "job": "baker barber clerk chief_clerk cook chief_cook doctor farmer guard night_guard judge miner nurse "
    "night_nurse pilot sailor smith tailor",
    "pet": "bear cat grey_cat crow dog grey_dog duck eel fox goat grey_goat hare horse mole owl grey_owl",
}
# What can lie in a list to recall, by kind.
KINDS = {
    "tool": "anvil brush comb drill file hammer hoe knife ladder lever needle pliers rake saw shovel spade".split(),
    "colour": "amber black blue brown coral cream gold green ivory lilac orange pink purple red silver white".split(),
    "weather": "rain snow wind fog sun hail frost heat".split(),
    "place": "hill river market bridge harbour forest field road".split(),
    "time": "morning evening noon night spring autumn summer winter".split(),
}

FACT_WORDINGS = {
    "boss": ("the boss of {} is", "{} works for", "{} has the boss", "who leads {} ?"),
    "teacher": ("the teacher of {} is", "{} learns from", "{} has the teacher", "who teaches {} ?"),
    "home": ("the home of {} is", "{} lives in", "{} has the home", "where lives {} ?"),
    "job": ("the job of {} is", "{} works as", "{} has the job", "what does {} do ?"),
    "pet": ("the pet of {} is", "{} walks with", "{} has the pet", "what animal has {} ?"),
}
HOP_WORDINGS = {
    "home": ("the home of the {} of {} is", "the {} of {} lives in"),
    "job": ("the job of the {} of {} is", "the {} of {} works as"),
    "pet": ("the pet of the {} of {} is", "the {} of {} walks with"),
}


def split_of(key: str) -> str:
    """Split of a document with this canonical key: 80 % train, 10 % validation, 10 % test, by hash alone."""
    bucket = hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 10
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


@dataclass(frozen=True)
class World:
    """People and what is true of them; drawn once from a seed and the same in every split."""

    people: tuple[str, ...]
    facts: dict[tuple[str, str], str]  # (person, relation) -> value
    wording_shift: dict[tuple[str, str], int]  # which of a fact's wordings belongs to which split
    hops: dict[
        str, tuple[tuple[str, str, str], ...]
    ]  # split -> (person, link, attribute) triples, disjoint


@lru_cache(maxsize=4)
def make_world(seed: int) -> World:
    """The world of a seed. Groups of people share a boss (a teacher), and every group has pairs in every split, so that
    a held-out two-hop question asks for a first and a second hop that were each trained, but never together."""
    rng = random.Random(f"world {seed}")
    starts, ends = (
        "b d f g h k l m n p r s t v z".split(),
        "ba do fi gu ka lo mi nu pa ro si tu va zo".split(),
    )
    names = sorted({start + vowel + end for start in starts for vowel in "aeiou" for end in ends})
    people = tuple(rng.sample(names, N_PEOPLE))
    facts: dict[tuple[str, str], str] = {}
    groups: dict[tuple[str, str], list[str]] = {}
    for link in LINKS:
        leaders = rng.sample(people, N_PEOPLE // FOLLOWERS)
        followers = rng.sample(people, N_PEOPLE)
        for position, person in enumerate(followers):
            leader = leaders[position // FOLLOWERS]
            facts[person, link] = leader
            groups.setdefault((link, leader), []).append(person)
    for relation in ATTRIBUTES:
        values = [value.replace("_", " ") for value in VALUES[relation].split()]
        for person in people:
            facts[person, relation] = rng.choice(values)
    hops: dict[str, list[tuple[str, str, str]]] = {split: [] for split in SPLITS}
    for (link, _), members in groups.items():
        for attribute in ATTRIBUTES:
            for position, person in enumerate(rng.sample(members, FOLLOWERS)):
                split = "test" if position < 2 else "validation" if position < 3 else "train"
                hops[split].append((person, link, attribute))
    shift = {key: rng.randrange(4) for key in facts}
    return World(people, facts, shift, {split: tuple(triples) for split, triples in hops.items()})


def values_of(world: World, relation: str) -> list[str]:
    """All values a relation takes in this world, sorted."""
    return sorted({world.facts[person, relation] for person in world.people})


def with_choices(rng: random.Random, query: str, answer: str, wrong: list[str]) -> Document:
    """A multiple-choice document with the answer at a random place among the wrong choices."""
    choices = [*wrong, answer]
    rng.shuffle(choices)
    return {"query": query, "choices": choices, "gold": choices.index(answer)}


def digits(number: int) -> str:
    """A number as blank-separated digits, most significant first."""
    return " ".join(str(number))


Listed = list[tuple[str, str]]  # (item, kind), in the order of the list


def recall_list(rng: random.Random, split: str, level: float) -> Listed:
    """Six items of four kinds (three of two at low levels), none twice. The list alone decides the split."""
    counts = (2, 2, 1, 1) if level > 0.5 else (2, 1)
    while True:
        kinds = rng.sample(list(KINDS), len(counts))
        items = [
            (item, kind)
            for kind, n in zip(kinds, counts, strict=True)
            for item in rng.sample(KINDS[kind], n)
        ]
        rng.shuffle(items)
        if split_of(f"recall {sorted(items)}") == split:
            return items


def recall_context(items: Listed) -> str:
    """The list as text."""
    return "look : " + " ".join(item for item, _ in items)


def recall_question(rng: random.Random, items: Listed, kind: str) -> tuple[str, str]:
    """A question for the first or the last item of a kind, and its answer."""
    of_kind = [item for item, its_kind in items if its_kind == kind]
    which, place = rng.choice((("first", 0), ("last", -1)))
    return f"? {which} {kind} :", of_kind[place]


def recall(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Recall in context: which item of this kind came first (last) in the list? Wrong choices are in it too."""
    items = recall_list(rng, split, level)
    kind = rng.choice(sorted({kind for _, kind in items}))
    question, answer = recall_question(rng, items, kind)
    rivals = [item for item, its_kind in items if its_kind == kind and item != answer]
    others = [item for item, its_kind in items if its_kind != kind]
    wrong = [*rivals, *rng.sample(others, min(len(others), 3 - len(rivals)))]
    return with_choices(rng, f"{recall_context(items)} {question}", answer, wrong)


def fact_wording(world: World, rng: random.Random, split: str, person: str, relation: str) -> str:
    """A wording of a fact in this split: of each fact's four wordings two train, one validates, one tests."""
    places = {"test": (0,), "validation": (1,), "train": (2, 3)}[split]
    wordings = FACT_WORDINGS[relation]
    index = (world.wording_shift[person, relation] + rng.choice(places)) % len(wordings)
    return wordings[index].format(person)


def facts(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Memorised facts. The facts are the same in every split by nature; the wording a fact is asked in is not."""
    person, relation = rng.choice(world.people), rng.choice(RELATIONS)
    answer = world.facts[person, relation]
    wrong = rng.sample([value for value in values_of(world, relation) if value != answer], 3)
    return with_choices(rng, fact_wording(world, rng, split, person, relation), answer, wrong)


def hops(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Two memorised facts composed: an attribute of someone's boss or teacher. Test pairs are held out of training."""
    person, link, attribute = rng.choice(world.hops[split])
    answer = world.facts[world.facts[person, link], attribute]
    wrong = rng.sample([value for value in values_of(world, attribute) if value != answer], 3)
    return with_choices(
        rng, rng.choice(HOP_WORDINGS[attribute]).format(link, person), answer, wrong
    )


def number(rng: random.Random, longest: int) -> int:
    """A number of one to ``longest`` digits, longer ones more often."""
    length = max(rng.randint(1, longest), rng.randint(1, longest))
    return rng.randrange(10 ** (length - 1), 10**length)


def addition(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Addition modulo 1000. Wrong choices are one digit off, as a lost or a spurious carry would make them."""
    longest = max(1, round(3 * level))
    while True:
        first, second = number(rng, longest), number(rng, longest)
        if split_of(f"addition {min(first, second)} {max(first, second)}") == split:
            break
    total = (first + second) % MODULUS
    near = {total + sign * 10**place for place in range(3) for sign in (-1, 1)}
    wrong = rng.sample(sorted(value for value in near if 0 <= value < MODULUS), 3)
    return with_choices(
        rng,
        f"{digits(first)} + {digits(second)} =",
        digits(total),
        [digits(value) for value in wrong],
    )


def comparison(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """The larger or the smaller of two numbers, which often begin with the same digits. The choices are the numbers."""
    longest = max(1, round(4 * level))
    while True:
        first, second = number(rng, longest), number(rng, longest)
        if rng.random() < 0.6:
            # the same length and a common beginning: the decision falls at any digit
            keep = 10 ** rng.randint(1, len(str(first)))
            second = first - first % keep + rng.randrange(keep)
        same = first == second or not second
        if not same and split_of(f"comparison {min(first, second)} {max(first, second)}") == split:
            break
    word, pick = rng.choice((("larger", max), ("smaller", min)))
    answer = pick(first, second)
    query = f"{word} : {digits(first)} or {digits(second)} ?"
    return with_choices(rng, query, digits(answer), [digits(first + second - answer)])


def expression(rng: random.Random, depth: int) -> tuple[str, bool]:
    """A boolean expression of exactly this nesting depth, and its value."""
    if depth == 0:
        value = rng.random() < 0.5
        return ("true" if value else "false"), value
    left, left_value = expression(rng, depth - 1)
    negated = rng.random() < 0.25
    right, right_value = expression(rng, rng.randrange(depth))
    if rng.random() < 0.5:
        left, right, left_value, right_value = right, left, right_value, left_value
    if rng.random() < 0.5:
        text, value = f"( {left} and {right} )", left_value and right_value
    else:
        text, value = f"( {left} or {right} )", left_value or right_value
    return (f"not {text}", not value) if negated else (text, value)


def boolean(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Nested boolean expressions, two to four deep; both answers equally often."""
    wanted = rng.random() < 0.5
    deepest = max(1, round(4 * level))
    while True:
        depth = rng.randint(2 if level >= 1 else 1, deepest)
        text, value = expression(rng, depth)
        # there are too few expressions of depth one to split, so all of them train
        if text.count(" ") >= LONGEST_EXPRESSION:
            continue
        if value == wanted and (depth == 1 or split_of(f"boolean {text}") == split):
            break
    choices = ["true", "false"]
    return {
        "query": f"{text} is",
        "choices": choices,
        "gold": choices.index("true" if value else "false"),
    }


def sorting(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Sorting five to eight digits; the answer is generated."""
    low, high = (5, 8) if level >= 1 else (2, max(3, round(8 * level)))
    while True:
        numbers = [rng.randrange(10) for _ in range(rng.randint(low, high))]
        # the multiset decides, so that no test answer was ever an answer in training
        if split_of(f"sorting {sorted(numbers)}") == split:
            break
    return {
        "query": f"sort {' '.join(map(str, numbers))} :",
        "answer": " ".join(map(str, sorted(numbers))),
    }


Generator = Callable[[World, random.Random, str, float], Document]
CHOICE_TASKS: dict[str, Generator] = {
    "recall": recall,
    "facts": facts,
    "hops": hops,
    "addition": addition,
    "comparison": comparison,
    "boolean": boolean,
}
GENERATED_TASKS: dict[str, Generator] = {"sorting": sorting}

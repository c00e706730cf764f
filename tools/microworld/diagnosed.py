"""Data for diagnoses of the embedded model: labelled inputs, and pairs of prompts that differ in one token.

``write(folder, seed)`` writes ``labels_{name}.jsonl`` and ``pairs_{name}.jsonl``, all from the test split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from microworld.tasks import RELATIONS, World, addition, digits, fact_wording, make_world, split_of

COUNTS = {"labels": 400, "pairs": 200}

Line = dict[str, str]


def relation(world: World, rng: random.Random) -> Line:
    """Which of five relations a question asks for; words of the question show it."""
    kind = rng.choice(RELATIONS)
    return {"text": fact_wording(world, rng, "test", rng.choice(world.people), kind), "label": kind}


def parity(world: World, rng: random.Random) -> Line:
    """Whether a sum is even, which the last digits of both numbers show together."""
    query = addition(world, rng, "test")["query"]
    last = [int(number.split()[-1]) for number in query.removesuffix(" =").split(" + ")]
    return {"text": query, "label": "odd" if sum(last) % 2 else "even"}


def carry(world: World, rng: random.Random) -> Line:
    """Whether the last digits of a sum carry."""
    query = addition(world, rng, "test")["query"]
    last = [int(number.split()[-1]) for number in query.removesuffix(" =").split(" + ")]
    return {"text": query, "label": "carry" if sum(last) > 9 else "none"}


def subject(world: World, rng: random.Random) -> Line:
    """One fact asked of two people."""
    while True:
        kind, one, other = rng.choice(RELATIONS), *rng.sample(world.people, 2)
        right, foil = world.facts[one, kind], world.facts[other, kind]
        if right.split()[0] != foil.split()[0]:
            clean = fact_wording(world, rng, "test", one, kind)
            return {
                "clean": clean,
                "corrupt": clean.replace(one, other),
                "right": right,
                "foil": foil,
            }


def digit(world: World, rng: random.Random) -> Line:
    """Two sums of three-digit numbers that differ in one leading digit, and so in the first digit of the answer."""
    while True:
        first, second = rng.randint(100, 899), rng.randint(100, 999)
        other = first + 100 * rng.choice(
            [by for by in range(-8, 9) if by and 1 <= first // 100 + by <= 9]
        )
        sums = [str((number + second) % 1000) for number in (first, other)]
        unseen = all(
            split_of(f"addition {min(n, second)} {max(n, second)}") == "test"
            for n in (first, other)
        )
        if unseen and sums[0][0] != sums[1][0]:
            clean, corrupt = (f"{digits(number)} + {digits(second)} =" for number in (first, other))
            return {
                "clean": clean,
                "corrupt": corrupt,
                "right": " ".join(sums[0]),
                "foil": " ".join(sums[1]),
            }


FILES: dict[str, Callable[[World, random.Random], Line]] = {
    "labels_relation": relation,
    "labels_parity": parity,
    "labels_carry": carry,
    "pairs_subject": subject,
    "pairs_digit": digit,
}


def write(folder: Path, seed: int) -> None:
    """Write every file with `COUNTS` different lines, byte for byte the same for the same seed."""
    world = make_world(seed)
    for name, generate in FILES.items():
        rng, lines = random.Random(f"{name} {seed}"), dict[str, None]()
        while len(lines) < COUNTS[name.split("_")[0]]:
            lines[json.dumps(generate(world, rng))] = None
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

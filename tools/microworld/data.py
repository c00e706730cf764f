"""The embedded microworld: its vocabulary, its corpus, its files, and the endless rows it trains a model on.

``write(folder, seed)`` writes ``{task}_{split}.jsonl``, byte for byte the same for the same seed. Training rows are
drawn from the same generators with ``split="train"``, so validation and test documents are never trained on.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from microworld.tasks import (
    CHOICE_TASKS,
    FACT_WORDINGS,
    GENERATED_TASKS,
    HOP_WORDINGS,
    KINDS,
    RELATIONS,
    SPLITS,
    VALUES,
    Document,
    World,
    fact_wording,
    make_world,
    recall_context,
    recall_list,
    recall_question,
)

TASKS = (*CHOICE_TASKS, *GENERATED_TASKS, "corpus")
SIZES = {"train": 2000, "validation": 500, "test": 600}

FILLERS = (
    "at {time} there was {weather} over the {place}",
    "the {place} was quiet at {time}",
    "after the {weather} the {place} was empty",
    "in {time} the {weather} came to the {place} and the {place} was closed",
    "nobody saw the {place} in the {weather}",
)
SIGNS = "? : , . + = ( )".split()
DIGITS = "0 1 2 3 4 5 6 7 8 9".split()
WORDS = "look first last larger smaller or and not true false is sort".split()
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")

Piece = tuple[
    str, bool
]  # text, and whether the model has to predict it (an answer) or only reads it (a prompt)


def vocabulary(seed: int) -> list[str]:
    """Every token of the microworld, special ones first, in a fixed order."""
    wordings = [
        text for texts in (*FACT_WORDINGS.values(), *HOP_WORDINGS.values()) for text in texts
    ]
    text = (
        " ".join([*FILLERS, *wordings])
        .replace("{place}", "")
        .replace("{weather}", "")
        .replace("{time}", "")
    )
    words = set(text.replace("{}", "").split())
    words |= {word for values in VALUES.values() for word in values.replace("_", " ").split()}
    words |= {*KINDS, *(item for items in KINDS.values() for item in items)}
    words |= {*WORDS, *RELATIONS, *make_world(seed).people}
    return [*SPECIAL, *DIGITS, *SIGNS, *sorted(words - set(SIGNS))]


def statement(document: Document) -> str:
    """A task document with its right answer, as running text."""
    return f"{document['query']} {answer_of(document)}"


def answer_of(document: Document) -> str:
    """The right answer of a multiple-choice or generated-answer document."""
    return document["answer"] if "answer" in document else document["choices"][document["gold"]]


def filler(rng: random.Random) -> str:
    """A sentence that needs no knowledge of the world."""
    return rng.choice(FILLERS).format(**{kind: rng.choice(items) for kind, items in KINDS.items()})


def corpus(world: World, rng: random.Random, split: str, level: float = 1.0) -> Document:
    """Running text that mixes all kinds of statements with filler sentences.

    It opens with a list to recall, which alone decides the split of the text, and asks for the list at the end.
    """
    items = recall_list(rng, split, level)
    sentences = [filler(rng)]
    for _ in range(2):
        kind = rng.choice(
            ("facts", "facts", "hops", "addition", "comparison", "boolean", "sorting")
        )
        if kind == "facts":
            person, relation = rng.choice(world.people), rng.choice(RELATIONS)
            sentences.append(
                f"{fact_wording(world, rng, split, person, relation)} {world.facts[person, relation]}"
            )
        else:
            task = {**CHOICE_TASKS, **GENERATED_TASKS}[kind]
            sentences.append(statement(task(world, rng, split, min(level, 0.5))))
    rng.shuffle(sentences)
    question, answer = recall_question(rng, items, rng.choice(items)[1])
    return {"text": " . ".join([recall_context(items), *sentences, f"{question} {answer} ."])}


def documents(task: str, split: str, count: int, seed: int) -> list[Document]:
    """``count`` different documents of one task and split."""
    world, rng = make_world(seed), random.Random(f"{task} {split} {seed}")
    generate = {**CHOICE_TASKS, **GENERATED_TASKS, "corpus": corpus}[task]
    by_key: dict[str, Document] = {}
    while len(by_key) < count:
        document = generate(world, rng, split, 1.0)
        asked = document.get("query", document.get("text"))
        by_key.setdefault(f"{asked} {sorted(document.get('choices', []))}", document)
    return list(by_key.values())


def write(folder: Path, seed: int) -> None:
    """Write every task's splits as ``{task}_{split}.jsonl`` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        for split in SPLITS:
            lines = [
                json.dumps(document) for document in documents(task, split, SIZES[split], seed)
            ]
            (folder / f"{task}_{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def recall_row(rng: random.Random, level: float) -> list[Piece]:
    """A list to recall, asked for once per kind: each further question is one more lesson from the same prompt."""
    items = recall_list(rng, "train", level)
    pieces: list[Piece] = [(recall_context(items), False)]
    kinds = sorted({kind for _, kind in items})
    for kind in rng.sample(kinds, len(kinds)):
        question, answer = recall_question(rng, items, kind)
        pieces += [(question, False), (answer, True)]
    return pieces


def training_row(task: str, world: World, rng: random.Random, level: float) -> list[Piece]:
    """One row of the training stream as alternating prompts and answers."""
    if task == "recall":
        return recall_row(rng, level)
    if task == "corpus":
        return [(corpus(world, rng, "train", level)["text"], True)]
    document = {**CHOICE_TASKS, **GENERATED_TASKS}[task](world, rng, "train", level)
    return [(document["query"], False), (answer_of(document), True)]


def training_rows(
    world: World, rng: random.Random, mixture: dict[str, float], level: float, tokens: int
) -> list[list[Piece]]:
    """Rows of the train split that hold at least this many tokens together.

    ``mixture`` gives each task's share of the rows.
    """
    rows, total = [], 0
    while total < tokens:
        task = rng.choices(list(mixture), list(mixture.values()))[0]
        row = training_row(task, world, rng, level)
        rows.append(row)
        total += sum(text.count(" ") + 1 for text, _ in row)
    return rows

"""Questions and texts cut for the studies of SmolLM2 and Qwen: parts to calibrate, to choose by and to test.

    PYTHONPATH=src python tools/cut_data.py FOLDER OUTPUT

FOLDER holds arc_easy.jsonl and piqa.jsonl (`query`, `choices` and `gold` in each line) and wikitext-2 with
wiki.valid.tokens and wiki.test.tokens; openbook_qa.jsonl and boolq.jsonl are cut where they are there. Equal questions
and near duplicates stay in one part.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lamina.data.overlap import Document, document_hash, find_shared_pairs, hash_word_runs
from lamina.errors import LaminaError, report_errors
from lamina.store import parquet

TASKS = ("arc_easy", "piqa")
OPTIONAL_TASKS = ("openbook_qa", "boolq")
TEXTS = {"calibration": "wiki.valid.tokens", "test": "wiki.test.tokens"}
# Questions in the parts before the test, which has the rest, and at least half.
PARTS = {"calibration": 400, "validation": 100}
WORDS = 40  # of the shortest paragraph that is taken for a text


def cut(folder: Path, output: Path) -> dict[str, int]:
    """Write the parts, and say how many documents each has."""
    needed = [
        *(folder / f"{task}.jsonl" for task in TASKS),
        *(folder / "wikitext-2" / name for name in TEXTS.values()),
    ]
    if missing := [str(file) for file in needed if not file.is_file()]:
        raise LaminaError(
            f"DATA: {', '.join(missing)} not found. Write DATA=FOLDER, a folder with arc_easy.jsonl, piqa.jsonl "
            "(query, choices and gold in each line) and wikitext-2, or take config/smollm2.yaml, which asks the hub."
        )
    parts: dict[str, list[dict]] = {}
    optional = [task for task in OPTIONAL_TASKS if (folder / f"{task}.jsonl").is_file()]
    for task in [*TASKS, *optional]:
        parts |= {
            f"{task}_{part}": found
            for part, found in split(questions(folder / f"{task}.jsonl")).items()
        }
    for part, name in TEXTS.items():
        lines = (folder / "wikitext-2" / name).read_text(encoding="utf-8").splitlines()
        texts = [line.strip() for line in lines if len(line.split()) >= WORDS]
        parts[f"wikitext_{part}"] = [{"text": text} for text in texts]
    for name, documents in parts.items():
        parquet.write_text(
            output / f"{name}.jsonl", "".join(f"{json.dumps(each)}\n" for each in documents)
        )
    return {name: len(documents) for name, documents in parts.items()}


def questions(file: Path) -> list[dict]:
    """The questions of a file, less those that write one choice twice, which no score could answer."""
    asked = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = [
        each
        for each in asked
        if len({choice.strip() for choice in each["choices"]}) == len(each["choices"])
    ]
    print(
        f"{file.name}: {len(asked) - len(kept)} of {len(asked)} questions write a choice twice and are left out"
    )
    return kept


def split(questions: list[dict], seed: int = 0) -> dict[str, list[dict]]:
    """Questions drawn into PARTS and the test, groups of near duplicates whole."""
    asked = [(question["query"], question["choices"]) for question in questions]
    of = groups([(document_hash(*each), hash_word_runs(*each)) for each in asked])
    members: dict[int, list[dict]] = {}
    for question, group in zip(questions, of, strict=True):
        members.setdefault(group, []).append(question)
    drawn = random.Random(seed).sample(sorted(members), len(members))
    share = min(1, len(questions) / 2 / sum(PARTS.values()))
    sizes = {part: int(size * share) for part, size in PARTS.items()}
    parts: dict[str, list[dict]] = {part: [] for part in PARTS}
    test = []
    for group in drawn:
        room = next(
            (
                part
                for part, size in sizes.items()
                if len(parts[part]) + len(members[group]) <= size
            ),
            None,
        )
        (parts[room] if room else test).extend(members[group])
    return parts | {"test": test}


def groups(documents: Sequence[Document]) -> list[int]:
    """A number for each document: chains of equal documents and near duplicates share one number."""
    one, other, near = find_shared_pairs(documents, documents)
    first: dict[str, int] = {}
    same = [first.setdefault(document, number) for number, (document, _) in enumerate(documents)]
    ends = np.concatenate(
        [np.stack([one[near], other[near]]), [np.arange(len(same)), same]], axis=1
    )
    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(len(same), len(same)))
    return [int(number) for number in connected_components(graph, directed=False)[1]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    with report_errors():
        for name, count in cut(args.folder, args.output).items():
            print(f"{name}: {count}")

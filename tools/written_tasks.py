"""Questions with written answers that a model of half a billion parameters can answer: three tasks.

    PYTHONPATH=src python tools/written_tasks.py resources/written

Word problems whose answer is a number, a sentence as JSON, and Python functions of one expression.
Each task has 200 questions in `train` and `test` and 100 in `validation`, no question twice, and
none in `train` that is a near duplicate of one in the others. The same seed gives the same files.
`workflow/tasks/written_*.yaml` says how answers are judged.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lamina.data.overlap import NEAR_SHARE, hash_word_runs
from lamina.store import parquet

SPLITS = {"test": 200, "validation": 100, "train": 200}  # questions
N_DRAWN = 2000  # different questions, of which the splits are made
SEED = 0

NAMES = (
    "Ada Ben Clara David Elif Farid Grace Hugo Ines Jonas Kofi Lena Marco Nora Omar Petra".split()
)
THINGS = (
    "apples books cards coins eggs marbles pencils photos shells stamps stickers stones".split()
)
CITIES = "Accra Athens Bergen Cairo Dublin Geneva Kyoto Lima Lisbon Nairobi Oslo Quito Riga".split()
JOBS = "baker carpenter doctor driver farmer gardener nurse painter pilot plumber teacher".split()
GOODS = "backpack chair coat kettle lamp mirror radio scarf table umbrella vase watch".split()
COLOURS = "black blue brown green grey orange pink purple red white yellow".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

# Arguments of functions.
TEXT_NAMES = "text word line name title label note query reply sentence".split()
LIST_NAMES = "items values numbers scores rows prices ages points marks ranks".split()
NUMBER_NAMES = "n number count size total length height amount index year".split()


class Question(NamedTuple):
    """A question and its right answer."""

    query: str
    answer: str


def draw_arithmetic(rng: random.Random) -> Question:
    """A word problem of one or two steps."""
    name, other_name = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    few = rng.randint(2, 9)
    some = rng.randint(5, 20)
    many = rng.randint(21, 60)
    problems = [
        (f"{name} has {many} {thing} and gives {some} of them to {other_name}. How many {thing} does {name} have left?",
         many - some),
        (f"{name} has {some} {thing} and {other_name} has {many}. How many {thing} do they have together?",
         some + many),
        (f"{name} buys {few} boxes with {some} {thing} in each. How many {thing} is that?", few * some),
        (f"{name} shares {few * some} {thing} equally among {few} friends. How many {thing} does each friend get?",
         some),
        (f"{name} has {many} {thing}, finds {some} more and loses {few}. How many {thing} does {name} have now?",
         many + some - few),
        (f"{name} buys {few} bags with {some} {thing} in each and gives away {few}. How many {thing} are left?",
         few * some - few),
        (f"{name} has {some} {thing}. {other_name} has {few} times as many. How many {thing} does {other_name} have?",
         few * some),
        (f"A train leaves with {many} people. At the first stop {some} get off and {few} get on. "
         "How many people are on the train now?", many - some + few),
        (f"{name} reads {some} pages a day. How many pages does {name} read in {few} days?", few * some),
        (f"A ticket costs {some} dollars. {name} buys {few} tickets and pays with {few * some + many} dollars. "
         f"How many dollars does {name} get back?", many),
        (f"{name} is {some} years old. {other_name} is {few} years older. How old are they together?",
         2 * some + few),
        (f"There are {few} rows of {some} chairs. {few} chairs are broken. How many chairs are not broken?",
         few * some - few),
    ]  # fmt: skip
    problem, number = rng.choice(problems)
    return Question(f"{problem} Answer with the number only.", str(number))


def draw_json(rng: random.Random) -> Question:
    """A sentence, and the keys of the object that holds what it says."""
    name = rng.choice(NAMES)
    city = rng.choice(CITIES)
    job = rng.choice(JOBS)
    day = rng.choice(DAYS)
    number = rng.randint(2, 99)
    small = rng.randint(1, 12)
    good = rng.choice(GOODS)
    colour = rng.choice(COLOURS)
    sentences = [
        (f"{name} is {number} years old and lives in {city}.", {"name": name, "age": number, "city": city}),
        (f"{name} works as a {job} in {city}.", {"name": name, "job": job, "city": city}),
        (f"The {colour} {good} costs {number} dollars.", {"item": good, "color": colour, "price": number}),
        (f"The meeting with {name} is on {day} in room {number}.", {"name": name, "day": day, "room": number}),
        (f"On {day} it was {number} degrees in {city}.", {"day": day, "temperature": number, "city": city}),
        (f"{name} ordered {small} {colour} {good}s.", {"customer": name, "quantity": small, "color": colour}),
        (f"Flight {number} to {city} leaves on {day}.", {"flight": number, "destination": city, "day": day}),
        (f"{name}, a {job}, has {small} children.", {"name": name, "job": job, "children": small}),
    ]  # fmt: skip
    sentence, facts = rng.choice(sentences)
    keys = ", ".join(facts)
    query = (
        f"Write this sentence as a JSON object with the keys {keys}: {sentence} "
        "Write numbers without quotes. Answer with the JSON only."
    )
    return Question(query, json.dumps(facts))


def draw_function(rng: random.Random) -> Question:
    """A Python function that lacks the expression it returns."""
    text = rng.choice(TEXT_NAMES)
    items = rng.choice(LIST_NAMES)
    n = rng.choice(NUMBER_NAMES)
    k = rng.randint(2, 12)
    letter, other_letter = rng.sample("abcdeghiklmnoprstu", 2)
    sign, sign_name = rng.choice(
        [(",", "commas"), (";", "semicolons"), ("-", "hyphens"), (":", "colons")]
    )
    wholes = [
        (text, f"{text} in upper case", f"{text}.upper()"),
        (text, f"{text} in lower case", f"{text}.lower()"),
        (text, f"{text} without white space at both ends", f"{text}.strip()"),
        (text, f"{text} repeated {k} times", f"{text} * {k}"),
        (text, f"{text} with every '{letter}' replaced by '{other_letter}'",
         f'{text}.replace("{letter}", "{other_letter}")'),
        (text, f"how often '{letter}' occurs in {text}", f'{text}.count("{letter}")'),
        (text, f"whether {text} starts with '{letter}'", f'{text}.startswith("{letter}")'),
        (text, f"whether {text} ends with '{letter}'", f'{text}.endswith("{letter}")'),
        (text, f"a list of the parts of {text} between {sign_name}", f'{text}.split("{sign}")'),
        (text, f"the first {k} characters of {text}", f"{text}[:{k}]"),
        (items, f"a text of all {items}, joined by {sign_name}", f'"{sign}".join({items})'),
        (items, f"the first {k} of {items}", f"{items}[:{k}]"),
        (items, f"the last {k} of {items}", f"{items}[-{k}:]"),
        (items, f"{items} from index {k} on", f"{items}[{k}:]"),
        (items, f"every {k}th of {items}, beginning with the first", f"{items}[::{k}]"),
        (items, f"the element of {items} at index {k}", f"{items}[{k}]"),
        (items, f"whether {k} is in {items}", f"{k} in {items}"),
        (items, f"how often {k} occurs in {items}", f"{items}.count({k})"),
        (items, f"the sum of the first {k} of {items}", f"sum({items}[:{k}])"),
        (items, f"the mean of {items}", f"sum({items}) / len({items})"),
        (items, f"{items} in sorted order, the largest first", f"sorted({items}, reverse=True)"),
        (items, f"{items} in reversed order, by a slice", f"{items}[::-1]"),
        (n, f"the remainder of {n} divided by {k}", f"{n} % {k}"),
        (n, f"{n} divided by {k}, rounded down", f"{n} // {k}"),
        (n, f"whether {n} is divisible by {k}", f"{n} % {k} == 0"),
        (n, f"{n} times {k}", f"{n} * {k}"),
        (n, f"{n} to the power of {k}", f"{n} ** {k}"),
        (n, f"{n} rounded to {k} digits after the point", f"round({n}, {k})"),
        (n, f"the larger one of {n} and {k}", f"max({n}, {k})"),
        (n, f"whether {n} is greater than {k}", f"{n} > {k}"),
    ]  # fmt: skip
    argument, meaning, expression = rng.choice(wholes)
    query = (
        "Answer only with the missing Python expression.\n\n"
        f'def f({argument}):\n    """Return {meaning}."""\n    return'
    )
    return Question(query, expression)


TASKS: dict[str, Callable[[random.Random], Question]] = {
    "arithmetic": draw_arithmetic,
    "json": draw_json,
    "functions": draw_function,
}


def draw_splits(task: str) -> dict[str, list[Question]]:
    """The questions of a task by split; none occurs twice."""
    rng = random.Random(f"{SEED} {task}")
    questions: dict[str, Question] = {}
    while len(questions) < N_DRAWN:
        question = TASKS[task](rng)
        questions.setdefault(question.query, question)

    waiting = list(questions.values())
    splits: dict[str, list[Question]] = {}
    for split, n_questions in SPLITS.items():
        if split == "train":
            others = [question for questions in splits.values() for question in questions]
            waiting = without_near_duplicates(waiting, others)
        splits[split] = waiting[:n_questions]
        del waiting[:n_questions]
    return splits


def without_near_duplicates(
    questions: Sequence[Question], others: Sequence[Question]
) -> list[Question]:
    """The questions that share less than half of their runs of words with each of the others.

    lamina's own check leaves out runs that many questions have. Which ones, depends on the draw.
    """
    other_runs = [set(hash_word_runs(other.query)) for other in others]
    distinct: list[Question] = []
    for question in questions:
        own_runs = set(hash_word_runs(question.query))
        if all(
            len(own_runs & runs) < NEAR_SHARE * min(len(own_runs), len(runs))
            for runs in other_runs
            if own_runs and runs
        ):
            distinct.append(question)
    return distinct


def write_tasks(folder: Path) -> None:
    """Write the questions of all tasks, `TASK_SPLIT.jsonl` each."""
    for task in TASKS:
        for split, questions in draw_splits(task).items():
            lines = [f"{json.dumps(question._asdict())}\n" for question in questions]
            parquet.write_text(folder / f"{task}_{split}.jsonl", "".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_tasks(parser.parse_args().folder)

"""The tasks of written answers: their files, and which answers count as right."""

import ast
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.filters import build_filter_ensemble

from lamina.data import overlap
from lamina.data.lm_tasks import load_task
from tests import ROOT

sys.path.append(str(ROOT / "tools"))
import written_tasks


def read_questions(task: str, split: str) -> list[dict[str, str]]:
    lines = (ROOT / f"resources/written/{task}_{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("task", written_tasks.TASKS)
def test_the_files_are_those_that_the_script_writes(task: str) -> None:
    for split, questions in written_tasks.draw_splits(task).items():
        assert [question._asdict() for question in questions] == read_questions(task, split)


@pytest.mark.parametrize("task", written_tasks.TASKS)
def test_no_question_is_asked_twice(task: str) -> None:
    questions = list(
        chain.from_iterable(read_questions(task, split) for split in written_tasks.SPLITS)
    )

    assert len({question["query"] for question in questions}) == len(questions) == 500


@pytest.mark.parametrize("task", written_tasks.TASKS)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_training_question_is_a_near_duplicate(task: str, split: str) -> None:
    """As lamina checks a calibration, in draws of several sizes."""
    documents: dict[str, list[overlap.Document]] = {}
    for name in ("train", split):
        queries = [question["query"] for question in read_questions(task, name)]
        documents[name] = [
            (overlap.document_hash(query), overlap.hash_word_runs(query)) for query in queries
        ]
    for n_train, n_others in ((20, 60), (60, 20), (200, 100)):
        shared = overlap.count_shared_documents(
            documents["train"][:n_train], documents[split][:n_others]
        )
        assert shared.near == 0


def test_the_answers_are_of_the_kind_that_is_asked_for() -> None:
    for question in read_questions("arithmetic", "test"):
        assert int(question["answer"]) > 0
    for question in read_questions("json", "test"):
        for key, value in json.loads(question["answer"]).items():
            assert key in question["query"]
            assert str(value) in question["query"]
    for question in read_questions("functions", "test"):
        body = f"{question['query'].partition('def ')[2]} {question['answer']}"
        assert isinstance(ast.parse(f"def {body}").body[0], ast.FunctionDef)


RIGHT = {
    "arithmetic": ("12", ["12", " 12.", "12 apples", "3 x 4 = 12"]),
    "json": (
        '{"name": "Ada", "age": 7}',
        ['{"name": "Ada", "age": 7}', '```json\n{\n  "name": "Ada",\n  "age": 7\n', '{"name":"Ada","age":7'],
    ),
    "functions": (
        'text.count("a")',
        [
            ' text.count("a")',
            "text.count('a')",
            "```python\ntext.count('a')\n```",
            'return text.count("a")',
            'def f(text):\n    """Return how often."""\n    return text.count("a")',
            "`text.count('a')`",
        ],
    ),
}  # fmt: skip
WRONG = {
    "arithmetic": ("12", ["twelve", "12 or 13", "-12", ""]),
    "json": ('{"name": "Ada", "age": 7}', ['{"name": "Ada"', '{"name": "Ada", "age": 8', "Ada, 7"]),
    "functions": ('text.count("a")', ['text.count("b")', "text.count", "", 'len(text.count("a"))']),
}


@pytest.mark.parametrize(("task", "cases", "is_right"), [
    *((task, cases, 1) for task, cases in RIGHT.items()),
    *((task, cases, 0) for task, cases in WRONG.items()),
])  # fmt: skip
def test_an_answer_is_judged_by_what_it_says(
    task: str, cases: tuple[str, list[str]], is_right: int
) -> None:
    gold, written = cases
    lm_task: Any = load_task(f"written_{task}", ROOT, 0)

    for answer in written:
        [filtered] = filter_answer(task, answer)
        scores = lm_task.process_results({"query": "?", "answer": gold}, [filtered])
        assert scores["exact_match"] == is_right, answer


def filter_answer(task: str, answer: str) -> list[str]:
    """The answer after the filters of its task file."""
    keys = yaml.safe_load(Path(ROOT, f"workflow/tasks/written_{task}.yaml").read_text())
    [settings] = keys["filter_list"]
    responses: Any = [[answer]]
    for step in settings["filter"]:
        options = {key: value for key, value in step.items() if key != "function"}
        ensemble = build_filter_ensemble(settings["name"], [[step["function"], options or None]])
        responses = ensemble.filters[0]().apply(responses, [{}])
    return list(responses)

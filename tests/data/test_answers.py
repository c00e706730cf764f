"""The right answers of a task obey the rules of a file of questions, or are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.data import answers, lm_tasks
from lamina.data.encoding import open_encoder
from lamina.data.task_groups import DatasetTask
from lamina.engine.sweep import sweep_units
from lamina.errors import LaminaError
from tests.given import tiny
from tests.given.tasks import make_task

QUESTION = "w1 w2"
CHOICES = ["w3", "w4 w5", "w6"]


def task_with_choices(golds: list[Any], **last_document: Any) -> DatasetTask:
    """A task of multiple choice whose test documents have these right answers."""
    documents = [{"query": QUESTION, "choices": CHOICES, "gold": gold} for gold in golds]
    documents[-1] |= last_document
    return make_task(
        {"test": documents},
        "multiple_choice",
        task="mine",
        test_split="test",
        num_fewshot=0,
        doc_to_text="query",
        doc_to_choice="choices",
        doc_to_target="gold",
    )


def task_with_written_answers(golds: list[Any]) -> DatasetTask:
    return make_task(
        {"test": [{"query": QUESTION, "gold": gold} for gold in golds]},
        "generate_until",
        task="mine",
        test_split="test",
        num_fewshot=0,
        doc_to_text="query",
        doc_to_target="gold",
    )


@pytest.mark.parametrize(
    ("golds", "fault"),
    [
        (
            [0, 3],
            "document 1 of its test split .*right answer is 3, but its choices are numbered 0 to 2",
        ),
        ([0, -1], "document 1 .*right answer is -1, but"),
        (["w3", "w5"], 'document 1 .*right answer is "w5", which is none of its 3 choices'),
        (["w3", "1"], 'document 1 .*right answer is "1", which is none of'),
        ([0, 1, None], "document 2 .*right answer is null, not the number of a choice"),
        ([0.5, 1.0], "document 0 .*right answer is 0.5, not the number of a choice\\."),
        (
            [1.0, 0.0],
            "document 0 .*right answer is 1.0, not the number of a choice: write whole numbers",
        ),
        ([[0], []], "document 1 .*empty list of right answers"),
        ([[0], [0, 1, 2]], "document 1 .*all of its 3 choices are right"),
        ([[0], [0, 7]], "document 1 .*right answer is 7, but"),
    ],
)
def test_a_right_answer_that_is_no_choice_is_refused_with_its_document(
    golds: list[Any], fault: str
) -> None:
    """In benchmarks and in calibrations."""
    with pytest.raises(LaminaError, match=f"task 'mine', {fault}"):
        lm_tasks.test_documents(task_with_choices(golds))
    encoder = open_encoder(tiny.model(depth=1), tiny.tokenizer())
    with pytest.raises(LaminaError, match=f"task 'mine', {fault}"):
        lm_tasks.task_samples(task_with_choices(golds), encoder, None, 0)


@pytest.mark.parametrize(
    ("golds", "fault"),
    [
        (["w3", ""], 'right answer is "", which is not a text'),
        (["w3", None], "right answer is null"),
        ([["w3"], []], "empty list"),
        ([["w3"], ["w4", " "]], 'right answer is " "'),
        ([[3], [4, 5]], "document 0 .*not a list of texts"),
        ([{"value": "w3"}, {"value": "w3"}], "document 0 .*not a text. Name one of its fields"),
        (["w3", "{'value': 'w3'}"], "document 1 .*not a text. Name one of its fields"),
    ],
)
def test_a_written_answer_that_is_no_text_is_refused(golds: list[Any], fault: str) -> None:
    with pytest.raises(LaminaError, match=f"task 'mine', .*{fault}"):
        lm_tasks.test_documents(task_with_written_answers(golds))


def test_a_written_answer_may_be_json() -> None:
    gold = json.dumps({"name": "w3", "age": 5})
    task = task_with_written_answers(["w3", gold])

    answers.check_documents(task, "test", True, [0, 1], is_scored=True)

    assert answers.right_texts(task, {"query": QUESTION, "gold": gold}) == [gold]


def test_a_list_of_answers_after_a_single_one_is_refused() -> None:
    """lm-eval takes all documents to have as many answers as the first."""
    task = task_with_written_answers(["w3"])
    task.doc_to_target = lambda doc, *_: ["w3", "w4"]  # type: ignore[method-assign]
    message = "document 0 .*a list of right answers, but the first .*a single one"
    with pytest.raises(LaminaError, match=message):
        lm_tasks.test_documents(task)


def test_equal_choices_are_refused_in_a_task_of_ones_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a published task, they are only reported."""
    task = task_with_choices([0, 2], choices=["w3", "w4", "w3"])

    with pytest.raises(LaminaError, match="document 1 .*choices 0 and 2 are both"):
        lm_tasks.test_documents(task)

    assert len(lm_tasks.test_documents(task, own=False)) == 2
    warning = "1 documents have choices that no score can tell apart. task 'mine', document 1"
    assert warning in caplog.text


def test_two_equal_wrong_choices_are_allowed() -> None:
    assert len(lm_tasks.test_documents(task_with_choices([1], choices=["w3", "w4", "w3"]))) == 1


TASK_FILE = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: test.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: query
doc_to_choice: choices
doc_to_target: gold
"""


def test_a_first_document_that_lm_eval_cannot_try_is_explained(tmp_path: Path) -> None:
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "workflow/tasks/mine.yaml").write_text(TASK_FILE)
    document = {"query": QUESTION, "choices": CHOICES, "gold": 5}
    (tmp_path / "test.jsonl").write_text(json.dumps(document))
    message = "task 'mine' cannot be made: its first test document.*not one of its choices"
    with pytest.raises(LaminaError, match=message):
        lm_tasks.load_task("mine", tmp_path)


def test_any_of_several_right_choices_counts() -> None:
    """A sample with two right choices is correct where it is with one of them, as in lm-eval."""
    model = tiny.model()
    encoder = open_encoder(model, tiny.tokenizer())

    def is_correct(gold: Any) -> bool:
        samples = lm_tasks.task_samples(task_with_choices([gold]), encoder, None, 0)
        (row,) = sweep_units(model, samples, ["2"]).rows(["2"])
        return bool(row["correct"])

    assert is_correct([0, 2]) == (is_correct(0) or is_correct(2))
    assert is_correct([0, 2]) != is_correct(1)


def test_the_first_of_several_right_choices_is_the_gold_of_a_sample() -> None:
    encoder = open_encoder(tiny.model(), tiny.tokenizer())
    (sample,) = lm_tasks.task_samples(task_with_choices([[0, 2]]), encoder, None, 0)
    assert sample.right == [0, 2]
    assert sample.gold == 0


@torch.no_grad()
def continue_greedily(model: Any, token_ids: list[int], n_tokens: int) -> list[int]:
    """The most likely tokens after some tokens, one plain forward a token."""
    written: list[int] = []
    for _ in range(n_tokens):
        logits = model(torch.tensor([token_ids + written])).logits[0, -1]
        written.append(int(logits.argmax()))
    return written


@pytest.mark.parametrize("is_written_answer_right", [True, False])
def test_any_of_several_written_answers_counts(is_written_answer_right: bool) -> None:
    """The first is the one that repairs and healings see, and whose loss is taken."""
    model = tiny.model()
    tokenizer = tiny.tokenizer()
    encoder = open_encoder(model, tokenizer)
    written = continue_greedily(model, encoder.tok_encode(QUESTION), 2)
    written_word = tokenizer.convert_ids_to_tokens(written[0])
    wrong_word = "w7" if written_word != "w7" else "w8"
    gold = [wrong_word, written_word if is_written_answer_right else "w9"]

    samples = lm_tasks.task_samples(task_with_written_answers([gold]), encoder, None, 0)
    first_alone = lm_tasks.task_samples(task_with_written_answers([gold[0]]), encoder, None, 0)
    (row,) = sweep_units(model, samples, []).rows(["none"])
    (expected_row,) = sweep_units(model, first_alone, []).rows(["none"])

    (sample,) = samples
    answers_of_rows = [tokenizer.decode(row.continuation[:1]) for row in sample.rows]
    assert answers_of_rows == gold
    assert sample.right == [0, 1]
    assert sample.sequence() == first_alone[0].sequence()
    ends_in_time = written[1] in sample.rows[1].continuation[1:]
    assert row["correct"] == (is_written_answer_right and ends_in_time)
    assert row["nll"] == pytest.approx(expected_row["nll"], rel=1e-5)


def test_a_written_choice_is_its_text_and_not_its_index() -> None:
    task = task_with_choices([1])
    task.set_config("output_type", "generate_until")
    assert answers.right_texts(task, task.eval_docs[0]) == ["w4 w5"]

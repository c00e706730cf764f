"""What a task yields is held against the rules of a file of questions, before anything is measured."""

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

CHOICES = {"query": "w1 w2", "choices": ["w3", "w4 w5", "w6"]}
WRITTEN = {"query": "w1 w2"}


def task(gold: list[Any], kind: str = "multiple_choice", **last: Any) -> DatasetTask:
    """A task whose test documents have these right answers."""
    documents = [
        (CHOICES if kind == "multiple_choice" else WRITTEN) | {"gold": each} for each in gold
    ]
    documents[-1] |= last
    keys = {"doc_to_choice": "choices"} if kind == "multiple_choice" else {}
    keys |= {"task": "mine", "test_split": "test", "doc_to_text": "query", "doc_to_target": "gold"}
    return make_task({"test": documents}, kind, num_fewshot=0, **keys)


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        (
            [0, 3],
            "document 1 of its test split .*right answer is 3, but its choices are numbered 0 to 2",
        ),
        ([0, -1], "document 1 .*right answer is -1, but"),
        (["w3", "w5"], 'document 1 .*right answer is "w5", which is none of its 3 choices'),
        (["w3", "1"], 'document 1 .*right answer is "1", which is none'),
        ([0, 1, None], "document 2 .*right answer is null, which is no number of a choice"),
        ([0.5, 1.0], "document 0 .*right answer is 0.5, which is no number of a choice\\."),
        (
            [1.0, 0.0],
            "document 0 .*right answer is 1.0, which is no number of a choice: write whole numbers",
        ),
        ([[0], []], "document 1 .*empty list of right answers"),
        ([[0], [0, 1, 2]], "document 1 .*all of its 3 choices are right"),
        ([[0], [0, 7]], "document 1 .*right answer is 7, but"),
    ],
)
def test_a_gold_that_is_no_choice_is_refused_with_its_document(gold: list[Any], fault: str) -> None:
    with pytest.raises(LaminaError, match=f"task 'mine', {fault}"):
        lm_tasks.test_documents(task(gold))
    with pytest.raises(LaminaError, match=f"task 'mine', {fault}"):
        lm_tasks.task_samples(task(gold), open_encoder(tiny.model(), tiny.tokenizer()), None, 0)


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        (["w3", ""], 'right answer is "", which is no text'),
        (["w3", None], "right answer is null"),
        ([["w3"], []], "empty list"),
        ([["w3"], ["w4", " "]], 'right answer is " "'),
        ([[3], [4, 5]], "document 0 .*which are not texts"),
        ([{"value": "w3"}] * 2, "document 0 .*fields of which one is to be named"),
        (["w3", "{'value': 'w3'}"], "document 1 .*fields of which one is to be named"),
    ],
)
def test_a_written_answer_that_is_no_text_is_refused(gold: list[Any], fault: str) -> None:
    with pytest.raises(LaminaError, match=f"task 'mine', .*{fault}"):
        lm_tasks.test_documents(task(gold, "generate_until"))


def test_what_lm_eval_would_compare_with_the_text_of_a_list_is_refused() -> None:
    """It takes all documents to have as many answers as the first."""
    mixed = task(["w3"], "generate_until")
    mixed.doc_to_target = lambda doc, *_: ["w3", "w4"]  # type: ignore[method-assign]
    with pytest.raises(
        LaminaError, match="document 0 .*a list of right answers, and the first .*a single one"
    ):
        lm_tasks.test_documents(mixed)


def test_choices_that_no_score_tells_apart_are_refused_in_a_task_of_ones_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    twice = task([0, 1], choices=["w3", "w4", "w3"])
    with pytest.raises(LaminaError, match="document 1 .*choices 0 and 2 are both"):
        lm_tasks.test_documents(twice)
    assert len(lm_tasks.test_documents(twice, own=False)) == 2
    assert (
        "1 documents have choices that no score tells apart. task 'mine', document 1" in caplog.text
    )


def test_a_first_document_that_lm_eval_cannot_try_is_explained(tmp_path: Path) -> None:
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    (tmp_path / "test.jsonl").write_text(json.dumps(CHOICES | {"gold": 5}))
    (tmp_path / "workflow/tasks/mine.yaml").write_text(
        "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: test.jsonl}}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: query\ndoc_to_choice: choices\ndoc_to_target: gold\n"
    )
    with pytest.raises(
        LaminaError,
        match="task 'mine' cannot be made: its first test document.*none of its choices",
    ):
        lm_tasks.load_task("mine", tmp_path)


def test_any_of_several_right_choices_counts() -> None:
    """As lm-eval counts: the sum over single right choices is the accuracy with all of them."""
    model, tokenizer = tiny.model(), tiny.tokenizer()
    lm = open_encoder(model, tokenizer)

    def correct(gold: list[Any]) -> list[bool]:
        made = lm_tasks.task_samples(task(gold), lm, None, 0)
        return [row["correct"] for row in sweep_units(model, made, ["2"]).rows(["2"])]

    assert correct([[0, 2]]) == [correct([0])[0] or correct([2])[0]] != correct([1])
    both = lm_tasks.task_samples(task([[0, 2]]), lm, None, 0)[0]
    assert both.right == [0, 2] and both.gold == 0


def test_any_of_several_written_answers_counts() -> None:
    """The first is what repairs and healings see, and whose loss is taken."""
    model, tokenizer = tiny.model(), tiny.tokenizer()
    lm = open_encoder(model, tokenizer)
    seen = lm.tok_encode("w1 w2")
    with torch.no_grad():
        written = [int(model(torch.tensor([[*seen]])).logits[0, -1].argmax())]
        written += [int(model(torch.tensor([[*seen, *written]])).logits[0, -1].argmax())]
    said = tokenizer.convert_ids_to_tokens(written[0])
    other = "w7" if said != "w7" else "w8"
    for gold, right in (([[other, said]], True), ([[other, "w9"]], False)):
        made = lm_tasks.task_samples(task(gold, "generate_until"), lm, None, 0)
        (sample,) = made
        assert [tokenizer.decode(row.continuation[:1]) for row in sample.rows] == gold[
            0
        ] and sample.right == [0, 1]
        alone = lm_tasks.task_samples(task([gold[0][0]], "generate_until"), lm, None, 0)
        assert sample.sequence() == alone[0].sequence()
        scores = sweep_units(model, made, []).rows(["none"])[0]
        stops = written[1] in sample.rows[1].continuation[1:]
        assert scores["correct"] == (right and stops)
        assert scores["nll"] == pytest.approx(
            sweep_units(model, alone, []).rows(["none"])[0]["nll"], rel=1e-5
        )


def test_a_written_choice_is_its_text_and_not_its_number() -> None:
    made = task([1])
    made.set_config("output_type", "generate_until")
    assert answers.right_texts(made, made.eval_docs[0]) == ["w4 w5"]

"""The microworld is deterministic, its splits are disjoint, and its answers are right.

Each answer is worked out again from its question alone.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lm_eval.tasks import TaskManager
from microworld import data, diagnosed, training
from microworld.tasks import (
    FACT_WORDINGS,
    HOP_WORDINGS,
    KINDS,
    MODULUS,
    SPLITS,
    Document,
    World,
    make_world,
)
from safetensors.torch import load_file

from tests import ROOT

DATA = ROOT / "resources/reference/data"
SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "config/reference.yaml").read_text())
SEED = SETTINGS["seed"]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(SEED)


def read_documents(task: str, split: str) -> list[Document]:
    lines = (DATA / f"{task}_{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def parse_number(digits: str) -> int:
    """The number that is written digit by digit."""
    return int(digits.replace(" ", ""))


def gold_answer(document: Document) -> str:
    return document["choices"][document["gold"]]


def test_the_committed_data_is_what_the_generator_writes_from_the_seed(tmp_path: Path) -> None:
    data.write(tmp_path, SEED)
    diagnosed.write(tmp_path, SEED)
    written_files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed_files = {path.name: path.read_bytes() for path in DATA.iterdir()}
    assert written_files == committed_files
    assert len(written_files) == len(data.TASKS) * len(SPLITS) + len(diagnosed.FILES)


def question_key(document: Document) -> str:
    """A question with its choices in any order, or a text."""
    question = document.get("query") or document["text"]
    return json.dumps([question, sorted(document.get("choices", []))])


@pytest.mark.parametrize("task", data.TASKS)
def test_splits_have_their_sizes_and_share_no_document(task: str) -> None:
    keys_by_split: dict[str, set[str]] = {}
    for split in SPLITS:
        documents = read_documents(task, split)
        assert len(documents) == data.SIZES[split]
        keys_by_split[split] = {question_key(document) for document in documents}
    all_keys = set.union(*keys_by_split.values())
    assert len(all_keys) == sum(data.SIZES[split] for split in SPLITS)


each_split = pytest.mark.parametrize("split", SPLITS)


@each_split
def test_sums_are_right(split: str) -> None:
    for document in read_documents("addition", split):
        first, second = document["query"].removesuffix(" =").split(" + ")
        expected = (parse_number(first) + parse_number(second)) % MODULUS
        assert parse_number(gold_answer(document)) == expected


@each_split
def test_comparisons_are_right(split: str) -> None:
    for document in read_documents("comparison", split):
        relation, numbers = document["query"].removesuffix(" ?").split(" : ")
        values = [parse_number(digits) for digits in numbers.split(" or ")]
        expected = max(values) if relation == "larger" else min(values)
        assert parse_number(gold_answer(document)) == expected


@each_split
def test_boolean_expressions_are_right(split: str) -> None:
    for document in read_documents("boolean", split):
        expression = document["query"].removesuffix(" is")
        python_expression = expression.replace("true", "True").replace("false", "False")
        assert gold_answer(document) == str(eval(python_expression)).lower()


@each_split
def test_sorted_digits_are_right(split: str) -> None:
    for document in read_documents("sorting", split):
        digits = document["query"].removeprefix("sort ").removesuffix(" :").split()
        assert document["answer"].split() == sorted(digits)


@each_split
def test_recalled_items_are_right(split: str) -> None:
    for document in read_documents("recall", split):
        listing, question = document["query"].removesuffix(" :").split(" ? ")
        items = listing.removeprefix("look : ").split()
        position, kind = question.split()
        items_of_kind = [item for item in items if item in KINDS[kind]]
        expected = items_of_kind[0] if position == "first" else items_of_kind[-1]
        assert gold_answer(document) == expected
        assert set(document["choices"]) <= set(items)


@each_split
def test_facts_are_right(split: str, world: World) -> None:
    answers: dict[str, str] = {}
    for (person, relation), value in world.facts.items():
        for wording in FACT_WORDINGS[relation]:
            answers[wording.format(person)] = value
    for document in read_documents("facts", split):
        assert gold_answer(document) == answers[document["query"]]


@each_split
def test_facts_over_two_hops_are_right(split: str, world: World) -> None:
    answers: dict[str, str] = {}
    for person, link, attribute in world.hops[split]:
        linked_person = world.facts[person, link]
        for wording in HOP_WORDINGS[attribute]:
            answers[wording.format(link, person)] = world.facts[linked_person, attribute]
    for document in read_documents("hops", split):
        assert gold_answer(document) == answers[document["query"]]


@pytest.fixture
def short_training() -> dict[str, Any]:
    """Settings of a training of six steps."""
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    steps = {
        "tokens": 3000,
        "tokens_per_step": 500,
        "checkpoint_every": 2,
        "keep": [2, 4],
        "validate_every": 3,
        "validate_documents": 5,
    }
    return {
        **SETTINGS,
        "model": SETTINGS["model"] | sizes,
        "training": SETTINGS["training"] | steps,
    }


def ignore_line(line: str) -> None:
    pass


def interrupt_at_step_3(line: str) -> None:
    if line.startswith("step 3"):
        raise KeyboardInterrupt


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_an_interrupted_training_resumes_to_the_same_weights(
    tmp_path: Path, short_training: dict[str, Any]
) -> None:
    training.train(short_training, tmp_path / "whole", log=ignore_line)
    with pytest.raises(KeyboardInterrupt):
        training.train(short_training, tmp_path / "resumed", log=interrupt_at_step_3)
    training.train(short_training, tmp_path / "resumed", log=ignore_line)

    resumed_weights = read_weights(tmp_path / "resumed")
    for name, weight in read_weights(tmp_path / "whole").items():
        assert torch.equal(resumed_weights[name], weight)
    for name in ("whole", "resumed"):
        checkpoints = tmp_path / name / "checkpoints"
        assert {folder.name for folder in checkpoints.iterdir()} == {"step2", "step4"}
        second_head = read_weights(checkpoints / "step2")["lm_head.weight"]
        fourth_head = read_weights(checkpoints / "step4")["lm_head.weight"]
        assert not torch.equal(second_head, fourth_head)


def test_a_training_does_not_resume_with_other_settings(
    tmp_path: Path, short_training: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        training.train(short_training, tmp_path, log=interrupt_at_step_3)
    short_training["training"]["learning_rate"] /= 2
    with pytest.raises(ValueError, match="other settings"):
        training.train(short_training, tmp_path, log=ignore_line)


@pytest.fixture(scope="module")
def task_names() -> list[str]:
    return [f"microworld_{task}" for task in data.TASKS if task != "corpus"]


def test_lm_eval_loads_the_task_files_as_they_are(
    task_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    manager = TaskManager(include_path=str(ROOT / "workflow/tasks"), include_defaults=False)
    tasks = manager.load(task_names)["tasks"]
    for name in task_names:
        task = tasks[name]
        document = next(iter(task.test_docs()))
        assert task.doc_to_text(document) == document["query"]
        if name == "microworld_sorting":
            assert task.doc_to_target(document) == document["answer"]
        else:
            assert task.doc_to_choice(document) == document["choices"]
            assert task.doc_to_target(document) == document["gold"]

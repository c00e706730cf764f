"""The microworld: deterministic, disjoint splits, right answers, task files that lm-eval loads as they are."""

import json
from pathlib import Path

import pytest
import torch
import yaml
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

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "resources/reference"
SEED = yaml.safe_load((ROOT / "config/reference.yaml").read_text())["seed"]


def number(text: str) -> int:
    return int(text.replace(" ", ""))


def read(task: str, split: str) -> list[Document]:
    return [
        json.loads(line)
        for line in (REFERENCE / "data" / f"{task}_{split}.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(SEED)


def asked(document: Document) -> str:
    return document["query"] if "query" in document else document["text"]


def test_the_committed_data_is_what_the_generator_writes_from_the_seed(tmp_path: Path) -> None:
    data.write(tmp_path, SEED)
    diagnosed.write(tmp_path, SEED)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in (REFERENCE / "data").iterdir()}
    assert written == committed
    assert len(written) == len(data.TASKS) * len(SPLITS) + len(diagnosed.FILES)


@pytest.mark.parametrize("task", data.TASKS)
def test_splits_have_their_sizes_and_share_no_document(task: str) -> None:
    seen: dict[str, set[str]] = {}
    for split in SPLITS:
        documents = read(task, split)
        keys = {
            json.dumps([asked(document), sorted(document.get("choices", []))])
            for document in documents
        }
        assert len(documents) == len(keys) == data.SIZES[split]
        seen[split] = keys
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


@pytest.mark.parametrize("split", SPLITS)
def test_gold_is_right_when_worked_out_independently(split: str, world: World) -> None:
    def gold(document: Document) -> str:
        return document["choices"][document["gold"]]

    for document in read("addition", split):
        first, second = document["query"].removesuffix(" =").split(" + ")
        assert number(gold(document)) == (number(first) + number(second)) % MODULUS
    for document in read("comparison", split):
        word, numbers = document["query"].removesuffix(" ?").split(" : ")
        values = sorted(number(text) for text in numbers.split(" or "))
        assert number(gold(document)) == (values[-1] if word == "larger" else values[0])
    for document in read("boolean", split):
        text = (
            document["query"].removesuffix(" is").replace("true", "True").replace("false", "False")
        )
        assert gold(document) == str(eval(text)).lower()
    for document in read("sorting", split):
        digits = document["query"].removeprefix("sort ").removesuffix(" :").split()
        assert document["answer"].split() == sorted(digits)
    for document in read("recall", split):
        listed, question = document["query"].removesuffix(" :").split(" ? ")
        items = listed.removeprefix("look : ").split()
        which, kind = question.split()
        of_kind = [item for item in items if item in KINDS[kind]]
        assert gold(document) == (of_kind[0] if which == "first" else of_kind[-1])
        assert set(document["choices"]) <= set(items)
    for document in read("hops", split):
        person, link, attribute = next(
            triple
            for triple in world.hops[split]
            if document["query"]
            in [wording.format(triple[1], triple[0]) for wording in HOP_WORDINGS[triple[2]]]
        )
        assert gold(document) == world.facts[world.facts[person, link], attribute]
    asking = {
        wording.format(person): value
        for (person, relation), value in world.facts.items()
        for wording in FACT_WORDINGS[relation]
    }
    assert all(gold(document) == asking[document["query"]] for document in read("facts", split))


def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "config/reference.yaml").read_text())
    settings["model"] |= {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
    }
    settings["model"]["num_key_value_heads"] = 2
    settings["training"] |= {
        "tokens": 3000,
        "tokens_per_step": 500,
        "checkpoint_every": 2,
        "keep": [2, 4],
    }
    settings["training"] |= {"validate_every": 3, "validate_documents": 5}

    def stop(line: str) -> None:
        if line.startswith("step 3"):
            raise KeyboardInterrupt

    training.train(settings, tmp_path / "whole", log=lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        training.train(settings, tmp_path / "resumed", log=stop)
    training.train(settings, tmp_path / "resumed", log=lambda line: None)
    whole, resumed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    for folder in (tmp_path / "whole/checkpoints", tmp_path / "resumed/checkpoints"):
        kept = {
            step.name: load_file(step / "model.safetensors")["lm_head.weight"]
            for step in folder.iterdir()
        }
        assert set(kept) == {"step2", "step4"} and not torch.equal(kept["step2"], kept["step4"])
    settings["training"]["learning_rate"] /= 2
    with pytest.raises(ValueError, match="other settings"):
        training.train(settings, tmp_path / "resumed", log=lambda line: None)


def test_lm_eval_loads_the_task_files_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    names = [f"microworld_{task}" for task in data.TASKS if task != "corpus"]
    loaded = TaskManager(include_path=str(ROOT / "workflow/tasks"), include_defaults=False).load(
        names
    )["tasks"]
    for name in names:
        task = loaded[name]
        document = next(iter(task.test_docs()))
        assert task.doc_to_text(document) == document["query"]
        if name == "microworld_sorting":
            assert task.doc_to_target(document) == document["answer"]
        else:
            assert task.doc_to_choice(document) == document["choices"]
            assert task.doc_to_target(document) == document["gold"]

"""What is done with one variant: new questions judge it, it chats beside its base model, it goes to
the hub."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from rich.console import Console

from lamina.data.overlap import document_hash, hash_word_runs
from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.commands.chat import Pair, write_reply
from lamina_workflow.commands.judge import describe_judgement, judge_variant, read_keep
from lamina_workflow.report.judgements import Judgement
from tests.given import tiny
from tests.given.model_folders import manifest_of, save_model
from tests.given.variants import plan_of
from tests.hub import server
from tests.hub.server import UPLOAD_TOKEN, Hub

VARIANT = "tiny/words/cosine/removed=2/none/none"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A model and a plan, as a run leaves them."""
    manifest = manifest_of(
        save_model(tmp_path / "model"),
        chat_template=False,
        fewshot_as_turns=True,
        system_prompt=None,
        template_arguments={},
    )
    results = tmp_path / "results"
    parquet.write_text(results / "models/tiny/manifest.json", json.dumps(manifest))
    plan = results / "plans/tiny/words/cosine/removed=2.json"
    parquet.write_text(plan, json.dumps(plan_of(["1", "3"])))
    return results


def write_questions(file: Path, first: int, count: int) -> list[dict[str, Any]]:
    questions = [
        {"query": f"w{index} w1 w2", "choices": ["w3", "w4"], "gold": index % 2}
        for index in range(first, first + count)
    ]
    file.write_text("".join(json.dumps(question) + "\n" for question in questions))
    return questions


def test_new_questions_are_measured_once_on_both_models(results: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "new.jsonl", 5, 20)

    judgement, is_new = judge_variant(VARIANT, tmp_path / "new.jsonl", results)

    assert is_new
    assert len(judgement.base) == len(judgement.pruned) == 20
    assert set(judgement.base) <= {0.0, 1.0}
    assert judgement.chance == 0.5
    again, is_new = judge_variant(VARIANT, tmp_path / "new.jsonl", results)
    assert not is_new
    assert again.pruned == judgement.pruned


def test_a_replaced_plan_is_judged_anew(results: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "new.jsonl", 5, 20)
    judge_variant(VARIANT, tmp_path / "new.jsonl", results)

    plan = results / "plans/tiny/words/cosine/removed=2.json"
    parquet.write_text(plan, json.dumps(plan_of(["0", "2"])))

    _, is_new = judge_variant(VARIANT, tmp_path / "new.jsonl", results)
    assert is_new


def test_questions_that_a_study_has_seen_are_refused(results: Path, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "new.jsonl", 5, 20)
    seen = [(question["query"], question["choices"]) for question in questions[:3]]
    columns = {
        "document": pa.array([document_hash(*document) for document in seen]),
        "runs": pa.array([hash_word_runs(*document) for document in seen], pa.list_(pa.uint64())),
    }
    parquet.write_table(results / "tasks/task.parquet", pa.table(columns))

    message = "3 of its 20 questions are in .*task.parquet.*chose between its variants"
    with pytest.raises(LaminaError, match=message):
        judge_variant(VARIANT, tmp_path / "new.jsonl", results)


def test_a_judgement_says_both_scores_and_the_paired_difference() -> None:
    base = [1.0] * 90 + [0.0] * 10
    pruned = [1.0] * 70 + [0.0] * 30

    judgement = Judgement("new.jsonl", "m/c/s/removed=1/none/none", [], "acc", base, pruned, 0.5)
    lines = describe_judgement(judgement, is_new=True, keep=0.95)

    assert lines[0].startswith("100 questions")
    assert "90.0 % [82.6, 94.5]" in lines[1]
    assert "70.0 %" in lines[2]
    assert "-20.0 points" in lines[3]
    assert "paired, significant" in lines[3]
    assert "20 answers differ" in lines[3]
    assert lines[4].startswith("keeps        95 % of the base model's score: no, it keeps 77.8 % [")


def test_the_share_to_keep_is_that_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("report: {keep: 80%}")

    assert read_keep(tmp_path / "config.yaml") == 0.8


def test_base_and_variant_reply_side_by_side(results: Path) -> None:
    output = io.StringIO()
    Console(width=120, file=output).print(Pair(VARIANT, results).reply("w5 w6 w7", 4))
    printed = output.getvalue()
    assert "base model, 5 layers" in printed
    assert "3 layers" in printed
    assert printed.count("tokens/s") == 2


def test_a_reply_is_the_likeliest_tokens_within_the_context(results: Path) -> None:
    model = tiny.model()
    tokenizer = tiny.tokenizer()
    reply = write_reply(model, tokenizer, "w5 w6 w7", 1)

    token_ids = tokenizer("w5 w6 w7", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        likeliest = int(model(token_ids).logits[0, -1].argmax())
    assert reply.text == tokenizer.decode([likeliest], skip_special_tokens=True)

    prompt = " ".join(["w5"] * (model.config.max_position_embeddings + 1))
    with pytest.raises(LaminaError, match="reads .* at once. Shorten it"):
        write_reply(model, tokenizer, prompt, 5)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with server.serve(Hub({}, uploads=tmp_path / "uploads")) as running_hub:
        yield running_hub


PUSH = """
import sys
from pathlib import Path
from lamina.errors import report_errors
from lamina_workflow.commands.push import Upload
with report_errors():
    upload = Upload(sys.argv[1], is_private=sys.argv[2] == "private")
    print(upload.describe(Path("export")))
    print(upload.run(Path("export"), "a variant"))
"""


def push(hub: Hub, folder: Path, *arguments: str, token: str = UPLOAD_TOKEN) -> Any:
    """Upload `folder/export`, in a process of its own, which reads the hub's address as it begins."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": token,
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", PUSH, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = save_model(tmp_path / "export")
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA smaller model.\n")
    return folder


def test_an_export_is_pushed_to_a_private_repository(
    hub: Hub, export: Path, tmp_path: Path
) -> None:
    done = push(hub, tmp_path, "lab/smaller", "private")

    assert done.returncode == 0, done.stderr
    assert "This repository is new and will be private." in done.stdout
    assert f"{hub.address}/lab/smaller" in done.stdout
    repository = hub.repositories["models", "lab/smaller"]
    assert repository.is_private
    names = {path.name for path in export.iterdir()}
    assert set(repository.list_files()) == names
    for name in names:
        assert (repository.folder / name).read_bytes() == (export / name).read_bytes()


def test_a_repository_that_exists_keeps_who_can_read_it(
    hub: Hub, export: Path, tmp_path: Path
) -> None:
    push(hub, tmp_path, "lab/smaller", "public")

    done = push(hub, tmp_path, "lab/smaller", "private")

    assert "This repository exists and is public: anyone can read it" in done.stdout


def test_without_a_token_nothing_is_pushed(hub: Hub, export: Path, tmp_path: Path) -> None:
    done = push(hub, tmp_path, "lab/smaller", "private", token="")

    assert done.returncode == 1
    assert done.stderr.startswith("lamina: the hub takes uploads from those who are logged in.")
    assert not hub.repositories


def test_a_refusal_of_the_hub_is_one_sentence(hub: Hub, export: Path, tmp_path: Path) -> None:
    done = push(hub, tmp_path, "lab/smaller", "private", token="hf_reader")

    assert done.returncode == 1
    assert done.stderr.startswith("lamina: the hub refuses lab/smaller: ")
    assert done.stderr.count("\n") == 1

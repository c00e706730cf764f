"""Calibrations hold exactly what lm-eval would score, and refuse what they cannot."""

import json
import random
import shutil
from pathlib import Path

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data import calibrations, documents, lm_tasks, task_groups
from lamina.data.overlap import document_hash
from lamina.data.prepare import prepare_calibration, text_samples
from lamina.errors import LaminaError
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Calibration
from lamina.options.models import Model

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "resources/reference"
ENTRY = Model(source="resources/reference", dtype="float32")
TASK = {"task": "microworld_recall", "split": "train", "limit": 25, "seed": 0}


@pytest.fixture(scope="module")
def manifest() -> dict:
    return describe_model("reference", ENTRY, REFERENCE)


@pytest.mark.parametrize(("num_fewshot", "chat"), [(0, False), (2, False), (2, True)])
def test_rows_are_the_encodings_that_lm_eval_scores(
    tmp_path: Path, num_fewshot: int, chat: bool
) -> None:
    """Also with examples before the question, and in a chat template."""
    for file in REFERENCE.glob("*.*"):
        shutil.copy(file, tmp_path / file.name)
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] }} = {{ message['content'] }} . {% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    manifest = describe_model("mine", ENTRY.model_copy(update={"chat_template": chat}), tmp_path)
    calibration = prepare_calibration(
        "recall", Calibration.from_options(TASK | {"num_fewshot": num_fewshot}), manifest, ROOT
    )
    seen = []

    class Recorder(HFLM):
        def _loglikelihood_tokens(self, requests, **kwargs):
            seen.extend(
                (tuple(context), tuple(continuation)) for _, context, continuation in requests
            )
            return [(0.0, False)] * len(requests)

    lm = Recorder(pretrained=AutoModelForCausalLM.from_pretrained(REFERENCE), tokenizer=tokenizer)
    task = lm_tasks.task_object("microworld_recall", ROOT, num_fewshot, split="train")
    task.set_fewshot_seed(1234)
    chosen = sorted(random.Random(0).sample(range(len(task.eval_docs)), 25))
    template = (
        {"apply_chat_template": True, "chat_template": lm.apply_chat_template} if chat else {}
    )
    template |= {"fewshot_as_multiturn": True} if chat else {}
    task.build_all_requests(
        samples=chosen, tokenizer_name=lm.tokenizer_name if chat else "", **template
    )
    lm.loglikelihood(task.instances, disable_tqdm=True)
    assert [(row.context, row.continuation) for s in calibration.samples for row in s.rows] == seen
    plain = prepare_calibration(
        "recall", Calibration.from_options(TASK), manifest | {"chat_template": False}, ROOT
    )
    assert (calibration == plain) == (num_fewshot == 0 and not chat)


def test_samples_are_drawn_by_seed_from_the_asked_split(manifest: dict, tmp_path: Path) -> None:
    """A calibration survives its file, and its chance is one over the number of choices."""
    first, again, other = (
        prepare_calibration(
            "recall", Calibration.from_options(TASK | {"seed": seed}), manifest, ROOT
        )
        for seed in (0, 0, 1)
    )
    assert first == again
    assert {s.document for s in first.samples} != {s.document for s in other.samples}
    lines = (REFERENCE / "data/recall_train.jsonl").read_text().splitlines()
    train = {document_hash(doc["query"], doc["choices"]) for doc in map(json.loads, lines)}
    assert {s.document for s in first.samples} <= train
    (choices,) = {len(sample.rows) for sample in first.samples}
    assert first.facts["chance_accuracy"] == pytest.approx(1 / choices)
    calibrations.write_calibration(tmp_path / "recall.parquet", first)
    assert calibrations.read_calibration(tmp_path / "recall.parquet") == first


def test_a_generated_answer_ends_with_the_stop(manifest: dict) -> None:
    calibration = prepare_calibration(
        "sorting", Calibration.from_options(TASK | {"task": "microworld_sorting"}), manifest, ROOT
    )
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    for sample in calibration.samples:
        assert sample.kind == "generated" and len(sample.rows) == 1
        assert sample.rows[0].continuation[-1] == tokenizer.eos_token_id
    assert calibration.facts["chance_accuracy"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "microworld_recal"}, "no lm-eval task 'microworld_recal'.*microworld_recall"),
        (
            {"split": "dev"},
            "microworld_recall.*no split 'dev'. It has train, validation: write `split: validation`",
        ),
        ({"limit": 1000000}, "calibrations.recall.*limit: 1000000 samples"),
    ],
)
def test_what_is_missing_is_refused(
    manifest: dict, change: dict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = task_groups.TaskManager  # of lm-eval's own ten thousand tasks it takes most of a minute
    monkeypatch.setattr(
        task_groups, "TaskManager", lambda **keys: index(**keys | {"include_defaults": False})
    )
    with pytest.raises(LaminaError, match=words):
        prepare_calibration("recall", Calibration.from_options(TASK | change), manifest, ROOT)


def test_text_samples_predict_every_token_but_the_first() -> None:
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    corpus = documents.read_documents(
        documents.corpus_file("microworld_corpus", "train", ROOT), "0:20"
    )
    for sample, document in zip(text_samples(corpus, tokenizer, 16), corpus, strict=True):
        tokens = tuple(calibrations.encode_document(tokenizer, document)[:16])
        assert sample.sequence() == tokens and sample.rows[0].continuation == tokens[1:]

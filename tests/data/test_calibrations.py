"""Calibrations hold exactly what lm-eval would score, and refuse what they cannot."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data import calibrations, documents, lm_tasks, task_groups
from lamina.data.calibrations import CalibrationSamples
from lamina.data.overlap import document_hash
from lamina.data.prepare import prepare_calibration, text_samples
from lamina.errors import LaminaError
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from tests import ROOT

REFERENCE = ROOT / "resources/reference"
ENTRY = Model(source="resources/reference", dtype="float32")
TASK = {"task": "microworld_recall", "split": "train", "limit": 25, "seed": 0}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} = {{ message['content'] }} . {% endfor %}"
)


@pytest.fixture(scope="module")
def manifest() -> dict:
    return describe_model("reference", ENTRY, REFERENCE)


def calibrate(manifest: dict[str, Any], **changes: Any) -> CalibrationSamples:
    return prepare_calibration("recall", Calibration.from_options(TASK | changes), manifest, ROOT)


class EncodingRecorder(HFLM):
    """lm-eval's own model, which notes the tokens that it would score."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.encodings: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def _loglikelihood_tokens(self, requests, **options):
        for _, context, continuation in requests:
            self.encodings.append((tuple(context), tuple(continuation)))
        return [(0.0, False)] * len(requests)


@pytest.mark.parametrize(("num_fewshot", "chat"), [(0, False), (2, False), (2, True)])
def test_rows_are_the_encodings_that_lm_eval_scores(
    tmp_path: Path, num_fewshot: int, chat: bool
) -> None:
    """Also with examples before the question, and in a chat template."""
    shutil.copytree(REFERENCE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    entry = ENTRY.model_copy(update={"chat_template": chat})
    manifest = describe_model("mine", entry, tmp_path)

    calibration = calibrate(manifest, num_fewshot=num_fewshot)

    model = AutoModelForCausalLM.from_pretrained(REFERENCE)
    recorder = EncodingRecorder(pretrained=model, tokenizer=tokenizer)
    task = lm_tasks.task_object("microworld_recall", ROOT, num_fewshot, split="train")
    task.set_fewshot_seed(1234)
    drawn_documents = sorted(random.Random(0).sample(range(len(task.eval_docs)), 25))
    chat_options: dict[str, Any] = {}
    if chat:
        chat_options["apply_chat_template"] = True
        chat_options["chat_template"] = recorder.apply_chat_template
        chat_options["fewshot_as_multiturn"] = True
        chat_options["tokenizer_name"] = recorder.tokenizer_name
    task.build_all_requests(samples=drawn_documents, **chat_options)
    recorder.loglikelihood(task.instances, disable_tqdm=True)
    rows = [row for sample in calibration.samples for row in sample.rows]
    assert [(row.context, row.continuation) for row in rows] == recorder.encodings
    is_plain = num_fewshot == 0 and not chat
    assert (calibration == calibrate(manifest | {"chat_template": False})) == is_plain


def test_a_seed_decides_which_samples_are_drawn(manifest: dict) -> None:
    first = calibrate(manifest)

    assert calibrate(manifest) == first
    other_seed = calibrate(manifest, seed=1)
    first_documents = {sample.document for sample in first.samples}
    assert first_documents != {sample.document for sample in other_seed.samples}


def test_samples_are_drawn_from_the_split_of_the_entry(manifest: dict) -> None:
    split_documents = set()
    for line in (REFERENCE / "data/recall_train.jsonl").read_text().splitlines():
        document = json.loads(line)
        split_documents.add(document_hash(document["query"], document["choices"]))

    calibration = calibrate(manifest)

    assert {sample.document for sample in calibration.samples} <= split_documents


def test_chance_is_one_over_the_number_of_choices(manifest: dict) -> None:
    calibration = calibrate(manifest)

    (n_choices,) = {len(sample.rows) for sample in calibration.samples}
    assert calibration.facts["chance_accuracy"] == pytest.approx(1 / n_choices)


def test_a_calibration_survives_its_file(manifest: dict, tmp_path: Path) -> None:
    calibration = calibrate(manifest)

    calibrations.write_calibration(tmp_path / "recall.parquet", calibration)

    assert calibrations.read_calibration(tmp_path / "recall.parquet") == calibration


def test_a_generated_answer_ends_with_the_stop(manifest: dict) -> None:
    calibration = calibrate(manifest, task="microworld_sorting")

    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    for sample in calibration.samples:
        assert sample.kind == "generated"
        (row,) = sample.rows
        assert row.continuation[-1] == tokenizer.eos_token_id
    assert calibration.facts["chance_accuracy"] == 0


@pytest.mark.parametrize("chat", [False, True])
def test_in_a_chat_template_an_answer_ends_with_the_turn(tmp_path: Path, chat: bool) -> None:
    """Without one, the stop of the task, here a full stop, ends it."""
    model_folder = tmp_path / "model"
    shutil.copytree(REFERENCE, model_folder, ignore=shutil.ignore_patterns("data"))
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model_folder)
    task = (ROOT / "workflow/tasks/microworld_sorting.yaml").read_text()
    (tmp_path / "workflow/tasks").mkdir(parents=True)
    changed_task = task.replace('until: ["\\n"]', 'until: [" ."]')
    assert changed_task != task
    (tmp_path / "workflow/tasks/microworld_sorting.yaml").write_text(changed_task)
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    entry = Model(source=str(model_folder), dtype="float32", chat_template=chat)
    manifest = describe_model("reference", entry, model_folder)
    options = Calibration.from_options(TASK | {"task": "microworld_sorting"})

    calibration = prepare_calibration("sorting", options, manifest, tmp_path)

    (ending,) = {sample.rows[0].continuation[-1] for sample in calibration.samples}
    expected_ending = tokenizer.eos_token if chat else "."
    assert tokenizer.convert_ids_to_tokens(ending) == expected_ending


@pytest.fixture
def without_tasks_of_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's index of its own ten thousand tasks takes most of a minute."""
    task_manager = task_groups.TaskManager
    monkeypatch.setattr(
        task_groups,
        "TaskManager",
        lambda **options: task_manager(**options | {"include_defaults": False}),
    )


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "microworld_recal"}, "no lm-eval task 'microworld_recal'.*microworld_recall"),
        (
            {"split": "dev"},
            "microworld_recall.*no split 'dev'. It has train, validation: "
            "write `split: validation`",
        ),
        ({"limit": 1000000}, "calibrations.recall.*limit: 1000000 samples"),
    ],
)
def test_what_is_missing_is_refused(manifest: dict, change: dict, message: str) -> None:
    with pytest.raises(LaminaError, match=message):
        calibrate(manifest, **change)


def test_text_samples_predict_every_token_but_the_first() -> None:
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    corpus_file = documents.corpus_file("microworld_corpus", "train", ROOT)
    corpus = documents.read_documents(corpus_file, "0:20")

    samples = text_samples(corpus, tokenizer, 16)

    for sample, document in zip(samples, corpus, strict=True):
        token_ids = tuple(calibrations.encode_document(tokenizer, document)[:16])
        assert sample.sequence() == token_ids
        assert sample.rows[0].continuation == token_ids[1:]

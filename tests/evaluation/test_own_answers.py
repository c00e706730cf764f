"""Calibrations of a model's own answers, against transformers' generation and lm-eval's scores."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples
from lamina.data.lm_tasks import task_object
from lamina.data.prepare import prepare_calibration
from lamina.errors import LaminaError
from lamina.evaluation.generation import answer_calibration
from lamina.models.load import load_folder, load_tokenizer
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.stages.prepare import GenerateAnswers, PrepareCalibration
from tests import ROOT
from tests.given import tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards
from tests.given.tasks import evaluate_with_lm_eval

MAX_TOKENS = 5
N_QUESTIONS = 36
N_TEXTS = 12
EOS = 2
STOP_WORD = "w30"
STOP = 34
SAMPLING = {
    "until": [STOP_WORD],
    "do_sample": True,
    "temperature": 0.7,
    "max_gen_toks": MAX_TOKENS,
}
TASK: dict[str, Any] = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"train": "mine.jsonl", "test": "mine.jsonl"}},
    "output_type": "generate_until",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": SAMPLING,
    "metric_list": [{"metric": "exact_match", "regexes_to_ignore": [r"^\s+|\s+$"]}],
}
OWN_ANSWERS = {"task": "mine", "answers": "model"}
TEXT_LENGTH = 12
PROMPT_LENGTH = 4


@torch.no_grad()
def generate_greedily(
    model: PreTrainedModel, prompt: tuple[int, ...], max_tokens: int, stop_ids: set[int]
) -> tuple[int, ...]:
    """What transformers alone writes, up to the first stop and with it."""
    token_ids = torch.tensor([prompt])
    output = model.generate(
        token_ids,
        do_sample=False,
        max_new_tokens=max_tokens,
        attention_mask=torch.ones_like(token_ids),
    )
    written: list[int] = output[0, len(prompt) :].tolist()
    for index, token_id in enumerate(written):
        if token_id in stop_ids:
            return tuple(written[: index + 1])
    return tuple(written)


def answer_greedily(model: PreTrainedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return generate_greedily(model, prompt, MAX_TOKENS, {EOS, STOP})


class AnswerProject:
    """A folder with a task of generated answers, texts, a model and its tokenizer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folder = root / "model"
        model = tiny.model()
        with torch.no_grad():
            model.lm_head.weight[EOS] *= 1.2
        model.save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
        self.manifest = describe_model("tiny", Model(source=str(folder), dtype="float32"), folder)
        self.model = load_folder(str(folder), "float32", False)
        self.tokenizer = load_tokenizer(self.manifest)
        self.text_options = {
            "text": str(root / "texts.json"),
            "documents": None,
            "length": TEXT_LENGTH,
            "prompt": PROMPT_LENGTH,
            "answers": "model",
        }
        self.write_data()
        self.write_task()

    def write_data(self) -> None:
        """Questions, of which the model answers two in three right if it writes anything; texts."""
        generator = random.Random(0)

        def random_words() -> str:
            return " ".join(generator.choices(tiny.WORDS, k=generator.randint(2, 9)))

        lines = []
        for number in range(N_QUESTIONS):
            query = random_words()
            written = answer_greedily(self.model, tuple(self.tokenizer(query)["input_ids"]))
            answer_tokens = [token for token in written if token not in (EOS, STOP)]
            answer = self.tokenizer.decode(answer_tokens)
            if number % 3 == 0 or not answer:
                answer = "w1 w2"
            lines.append(json.dumps({"q": query, "a": answer}))
        (self.root / "mine.jsonl").write_text("\n".join(lines))
        texts = [random_words() for _ in range(N_TEXTS)]
        (self.root / "texts.json").write_text(json.dumps(texts))

    def write_task(self, **changes: Any) -> None:
        tasks = self.root / "workflow/tasks"
        tasks.mkdir(parents=True, exist_ok=True)
        (tasks / "mine.yaml").write_text(yaml.safe_dump(TASK | changes))

    def prepare_questions(self, options: dict[str, Any]) -> CalibrationSamples:
        """The calibration before the model answers."""
        entry = Calibration.from_options(options)
        return prepare_calibration("own", entry, self.manifest, self.root)

    def prepare_answers(self, options: dict[str, Any]) -> CalibrationSamples:
        """The calibration as the jobs of the workflow prepare it."""
        entry = Calibration.from_options(options)
        questions = self.prepare_questions(options)
        answered = answer_calibration("own", entry, questions, self.model, self.manifest, self.root)
        calibrations.write_calibration(self.answers_file, answered)
        return prepare_calibration(
            "own", entry, self.manifest, self.root, written={"own": str(self.answers_file)}
        )

    @property
    def answers_file(self) -> Path:
        return self.root / "own.parquet"


@pytest.fixture
def project(tmp_path: Path) -> AnswerProject:
    return AnswerProject(tmp_path)


def test_own_answers_are_those_of_transformers_prompt_by_prompt(project: AnswerProject) -> None:
    """Greedy ones, whatever the task file says of sampling."""
    calibration = project.prepare_answers(OWN_ANSWERS)

    rows = [sample.rows[0] for sample in calibration.samples]
    answers = [row.continuation for row in rows]
    assert answers == [answer_greedily(project.model, row.context) for row in rows]
    assert calibration.facts["n_asked"] == N_QUESTIONS
    assert calibration.facts["n_samples"] == N_QUESTIONS
    assert calibration.facts["temperature"] == 0
    # Some end by themselves, some at the stop word, some nowhere.
    assert {answer[-1] for answer in answers} > {EOS, STOP}


def test_own_answers_are_to_the_questions_of_the_task(project: AnswerProject) -> None:
    """Also their fingerprints, by which test documents are found among them."""
    answered = project.prepare_answers(OWN_ANSWERS)

    questions = project.prepare_questions({"task": "mine"})
    for sample, question in zip(answered.samples, questions.samples, strict=True):
        assert sample.rows[0].context == question.rows[0].context
        assert sample.document == question.document
        assert sample.runs == question.runs
        assert sample.index == question.index


def test_facts_before_the_model_answers_are_those_of_the_task(project: AnswerProject) -> None:
    facts = project.prepare_questions(OWN_ANSWERS).facts
    assert facts == project.prepare_questions({"task": "mine"}).facts
    assert "n_asked" not in facts


def test_penalties_of_the_model_and_of_the_task_do_not_count(project: AnswerProject) -> None:
    """Qwen2.5 and others are published with a repetition penalty."""
    answers = project.prepare_answers(OWN_ANSWERS).samples
    continuations = project.prepare_answers(project.text_options).samples

    project.write_task(generation_kwargs=SAMPLING | {"repetition_penalty": 1.8})
    project.model.generation_config.repetition_penalty = 1.8
    project.model.generation_config.no_repeat_ngram_size = 2

    assert project.prepare_answers(OWN_ANSWERS).samples == answers
    assert project.prepare_answers(project.text_options).samples == continuations
    rows = [sample.rows[0] for sample in answers]
    penalised = [answer_greedily(project.model, row.context) for row in rows]
    assert penalised != [row.continuation for row in rows]


def test_texts_go_on_after_their_first_tokens(project: AnswerProject) -> None:
    calibration = project.prepare_answers(project.text_options)

    texts = project.prepare_questions(project.text_options).samples
    for sample, text in zip(calibration.samples, texts, strict=True):
        (row,) = sample.rows
        n_new_tokens = TEXT_LENGTH - len(row.context)
        expected = generate_greedily(project.model, row.context, n_new_tokens, {EOS})
        assert sample.kind == "text"
        assert row.context == text.sequence()[:PROMPT_LENGTH]
        assert row.continuation == expected
    assert calibration.facts["n_right"] is None
    assert calibration.facts["n_samples"] == N_TEXTS


def test_right_answers_are_those_that_lm_eval_calls_right(project: AnswerProject) -> None:
    right_answers = project.prepare_answers(OWN_ANSWERS | {"keep": "right"})
    all_answers = project.prepare_answers(OWN_ANSWERS)

    project.write_task(generation_kwargs=SAMPLING | {"do_sample": False, "temperature": 0.0})
    task = task_object("mine", project.root, split="train")
    expected = evaluate_with_lm_eval(project.model, task)["samples"]["mine"]
    right_documents = {sample["doc_id"] for sample in expected if sample["exact_match"] > 0}
    n_right = len(right_documents)
    assert 10 <= n_right < N_QUESTIONS
    right_rows = [
        sample.rows
        for document, sample in enumerate(all_answers.samples)
        if document in right_documents
    ]
    assert [sample.rows for sample in right_answers.samples] == right_rows
    assert [sample.index for sample in right_answers.samples] == list(range(n_right))
    for calibration in (right_answers, all_answers):
        assert calibration.facts["n_asked"] == N_QUESTIONS
        assert calibration.facts["n_right"] == n_right


def test_drawn_answers_depend_on_the_seed(project: AnswerProject) -> None:
    options = OWN_ANSWERS | {"temperature": 1.5}
    first = project.prepare_answers(options | {"seed": 0}).samples
    assert project.prepare_answers(options | {"seed": 0}).samples == first
    assert project.prepare_answers(options | {"seed": 1}).samples != first


def test_answers_drawn_at_a_low_temperature_are_the_greedy_ones(project: AnswerProject) -> None:
    cold_answers = project.prepare_answers(OWN_ANSWERS | {"temperature": 1e-6}).samples
    assert cold_answers == project.prepare_answers(OWN_ANSWERS).samples


def test_a_mixture_has_the_own_answers_of_its_part(project: AnswerProject) -> None:
    answered = project.prepare_answers(OWN_ANSWERS).samples
    questions = project.prepare_questions({"task": "mine"}).samples
    parts = {
        "own": Calibration.from_options(OWN_ANSWERS),
        "gold": Calibration.from_options({"task": "mine"}),
    }
    options = {"mixture": {"own": 1, "gold": 1}, "limit": 2 * N_QUESTIONS}

    mixture = prepare_calibration(
        "both",
        Calibration.from_options(options),
        project.manifest,
        project.root,
        parts,
        {"own": str(project.answers_file)},
    )

    expected = [sample.rows for sample in [*answered, *questions]]
    assert [sample.rows for sample in mixture.samples] == expected


def test_a_model_that_answers_nothing_right_is_refused(project: AnswerProject) -> None:
    lines = []
    for line in (project.root / "mine.jsonl").read_text().splitlines():
        lines.append(json.dumps(json.loads(line) | {"a": "w1 w2"}))
    (project.root / "mine.jsonl").write_text("\n".join(lines))
    message = (
        f"calibrations.own.keep: the model answers 0 of {N_QUESTIONS} questions right.*"
        "Write keep: all, a larger"
    )
    with pytest.raises(LaminaError, match=message):
        project.prepare_answers(OWN_ANSWERS | {"keep": "right"})


def test_right_answers_need_a_task_with_exact_match(project: AnswerProject) -> None:
    project.write_task(metric_list=[{"metric": "bleu"}])
    message = "calibrations.own.keep: task 'mine' has no exact_match.*Write keep: all"
    with pytest.raises(LaminaError, match=message):
        project.prepare_questions(OWN_ANSWERS | {"keep": "right"})


def test_own_answers_need_a_task_that_generates(project: AnswerProject) -> None:
    project.write_task(output_type="loglikelihood")
    message = "calibrations.own.answers: task 'mine' scores by loglikelihood"
    with pytest.raises(LaminaError, match=message):
        project.prepare_questions(OWN_ANSWERS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "recall",
            {"task": "microworld_recall", "answers": "model"},
            "calibrations.recall.answers: task 'microworld_recall' scores by multiple_choice.*"
            "Write answers: gold, or .*generate_until",
        ),
        (
            "mine",
            {"choices": "mine.jsonl", "answers": "model"},
            "calibrations.mine.answers: .*Leave `answers` out",
        ),
        (
            "recall",
            {"task": "microworld_sorting", "keep": "right"},
            "calibrations.recall.keep: .*add `answers: model`",
        ),
        (
            "corpus",
            {"text": "microworld_corpus", "temperature": 1},
            "corpus.temperature: .*answers: model",
        ),
        (
            "corpus",
            {"text": "microworld_corpus", "answers": "model", "prompt": 128},
            "prompt: .*shorter than `length`",
        ),
    ],
)
def test_a_configuration_is_refused_before_any_job(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    root = write_model_and_data(tmp_path)
    raw_config = set_key(minimal_config(), f"calibrations.{name}", options)
    with pytest.raises(LaminaError, match=message):
        load_configuration(raw_config, root)


OWN_SORTING = {"task": "microworld_sorting", "answers": "model", "temperature": 0.5}


@pytest.mark.parametrize("name", ["recall", "mixture", "corpus", "mine"])
def test_jobs_of_other_calibrations_have_no_options_of_own_answers(
    tmp_path: Path, name: str
) -> None:
    raw_config = set_key(minimal_config(), "calibrations.own", OWN_SORTING)
    config = load_configuration(raw_config, write_model_and_data(tmp_path))

    wildcards = make_wildcards(model="small", calibration=name)
    options = PrepareCalibration.of(config, wildcards).options()

    assert "answers" not in options
    assert not {"answers", "keep", "temperature", "prompt"} & options["entry"].keys()


def test_own_answers_depend_on_their_calibration_and_the_models_family(tmp_path: Path) -> None:
    raw_config = set_key(minimal_config(), "calibrations.own", OWN_SORTING)
    config = load_configuration(raw_config, write_model_and_data(tmp_path))

    wildcards = make_wildcards(model="small", calibration="own")
    options = GenerateAnswers.of(config, wildcards).options()

    assert options["entry"] == OWN_SORTING
    assert options["follows"].keys() == {"family"}
    assert load_configuration(config.plain(), tmp_path) == config

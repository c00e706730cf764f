"""A GPT-2 with 64 learned positions and a tokenizer with neither BOS nor EOS.

What fits into its context works as in lm-eval, and what does not is refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from lamina.data import lm_tasks
from lamina.data.calibrations import Row, Sample
from lamina.data.encoding import EncodingLM
from lamina.data.prepare import prepare_calibration
from lamina.engine import weights
from lamina.engine.capture import capture_similarities
from lamina.engine.sweep import sweep_units
from lamina.errors import LaminaError
from lamina.evaluation.tasks import TaskBenchmark
from lamina.healing import training
from lamina.healing.objectives import Objective
from lamina.models.boundary import share_weights
from lamina.models.load import load_model, load_tokenizer
from lamina.models.manifest import describe_model
from lamina.models.surgery import apply_edits
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from tests import ROOT
from tests.given import tiny

CONTEXT_LENGTH = 64
ENTRY = Model(source="small", dtype="float32")
CHOICES = ["w1 w2", "w3"]
CHOICE_TOKENS = [[2, 3], [4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    tiny.save_without_bos_and_eos(folder, CONTEXT_LENGTH)
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    return describe_model("small", ENTRY, folder)


def question_words(question_index: int, length: int) -> list[int]:
    """Indices of the words of a question."""
    return [(question_index + 7 * position) % len(tiny.WORDS) for position in range(length)]


def write_questions(root: Path, *lengths: int, **changes: Any) -> str:
    """A file with one question of each length in tokens, which its choices come on top of."""
    lines = []
    for question_index, length in enumerate(lengths):
        words = [tiny.WORDS[word] for word in question_words(question_index, length)]
        question = {"query": " ".join(words), "choices": CHOICES, "gold": question_index % 2}
        lines.append(json.dumps(question | changes))
    (root / "mine.jsonl").write_text("\n".join(lines))
    return "mine.jsonl"


def calibrate(manifest: dict[str, Any], root: Path, **options: Any) -> Any:
    return prepare_calibration("mine", Calibration.from_options(options), manifest, root)


def test_questions_longer_than_the_context_lose_their_oldest_tokens(
    manifest: dict, tmp_path: Path
) -> None:
    """What fits is encoded as by lm-eval: a model sees all tokens but the last."""
    lengths = (10, 61, 62, 63, 64, 65, 200)

    calibration = calibrate(manifest, tmp_path, choices=write_questions(tmp_path, *lengths))

    seen_lengths = [len(sample.sequence()) for sample in calibration.samples]
    assert seen_lengths == [12, 62, 64, 64, 64, 64, 64]
    for question_index, length in enumerate(lengths):
        question = [1 + word for word in question_words(question_index, length)]
        rows = calibration.samples[question_index].rows
        for row, answer in zip(rows, CHOICE_TOKENS, strict=True):
            fitting = (question + answer)[-(CONTEXT_LENGTH + 1) :]
            context = tuple(fitting[: -len(answer)])
            n_cut = length - len(context)
            assert row == Row(context, tuple(answer), row.characters, n_cut)


def test_questions_longer_than_the_context_run(manifest: dict, tmp_path: Path) -> None:
    file = write_questions(tmp_path, 10, 61, 62, 63, 64, 65, 200)
    calibration = calibrate(manifest, tmp_path, choices=file)
    model = load_model(manifest)

    similarities = capture_similarities(model, calibration.sequences())
    sweep_rows = sweep_units(model, calibration.samples, ["0", "3"]).rows(["0", "3"])

    norms = [row["norm"] for row in similarities if row["span"] == 0]
    assert torch.tensor(norms).isfinite().all()
    assert len(sweep_rows) == 2 * 7
    assert all(row["nll"] is not None for row in sweep_rows)


def test_questions_need_neither_bos_nor_eos_in_calibrations_and_benchmarks(
    manifest: dict, tmp_path: Path
) -> None:
    """The benchmark's accuracy is that of log-likelihoods taken from the model without lm-eval."""
    file = write_questions(tmp_path, 5, 9, 20, 30)
    model = load_model(manifest)
    calibration = calibrate(manifest, tmp_path, choices=file)

    task = lm_tasks.task_object("mine", tmp_path, choices=file)
    scores = TaskBenchmark(task, model, load_tokenizer(manifest)).score(model, "base")

    n_correct = 0
    for sample in calibration.samples:
        log_likelihoods = [log_likelihood(model, row) for row in sample.rows]
        n_correct += log_likelihoods.index(max(log_likelihoods)) == sample.gold
    (accuracy,) = (row["value"] for row in scores.metrics if row["metric"] == "acc")
    assert accuracy == n_correct / 4


@torch.no_grad()
def log_likelihood(model: Any, row: Row) -> float:
    """Of a continuation after its context, by one plain forward."""
    token_ids = torch.tensor([row.context + row.continuation])
    logprobs = model(token_ids).logits[0].log_softmax(-1)
    first = len(row.context) - 1
    return sum(float(logprobs[first + n, token]) for n, token in enumerate(row.continuation))


def test_where_bos_or_eos_is_needed_the_message_says_so(manifest: dict, tmp_path: Path) -> None:
    no_bos = r"neither BOS nor EOS, one of which begins an empty question.*tokenizer_config.json"
    with pytest.raises(LaminaError, match=no_bos):
        calibrate(manifest, tmp_path, choices=write_questions(tmp_path, 5, query=""))
    with pytest.raises(LaminaError, match=r"no EOS, which ends a generated answer"):
        calibrate(manifest, ROOT, task="microworld_sorting", limit=3)


def test_answers_that_leave_no_room_for_questions_are_refused(manifest: dict) -> None:
    task = lm_tasks.task_object("microworld_sorting", ROOT)
    task.config.generation_kwargs["max_gen_toks"] = CONTEXT_LENGTH
    model = load_model(manifest)
    benchmark = TaskBenchmark(task, model, load_tokenizer(manifest), limit=2)

    message = "'microworld_sorting' generates up to 64 .*context of 64.*max_gen_toks"
    with pytest.raises(LaminaError, match=message):
        benchmark.score(model, "base")


def test_examples_that_do_not_fit_are_cut_from_the_left(manifest: dict, tmp_path: Path) -> None:
    file = write_questions(tmp_path, 20, 21, 22, 23, 24)

    with_examples = calibrate(manifest, tmp_path, choices=file, num_fewshot=4)

    without_examples = calibrate(manifest, tmp_path, choices=file)
    for cut, plain in zip(with_examples.samples, without_examples.samples, strict=True):
        for row in cut.rows:
            assert len(row.context) + len(row.continuation) == CONTEXT_LENGTH + 1
        question = plain.rows[0].context
        assert cut.rows[0].context[-len(question) :] == question


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["w1", " ".join(["w2"] * 65)], "65 tokens, of which 64 fit"),
        (["w1", "\u200b"], "no token"),
    ],
)
def test_an_answer_that_cannot_be_scored_is_refused(
    manifest: dict, tmp_path: Path, choices: list[str], message: str, monkeypatch: Any
) -> None:
    """With a tokenizer that has no token for a word that it does not know, as some have none."""
    encode = EncodingLM.tok_encode

    def encode_known_words(*arguments: Any, **options: Any) -> list[int]:
        return [token for token in encode(*arguments, **options) if token != 0]

    monkeypatch.setattr(EncodingLM, "tok_encode", encode_known_words)
    file = write_questions(tmp_path, 5, choices=choices)

    with pytest.raises(LaminaError, match=f"{message}.*cannot be scored. Leave it out"):
        calibrate(manifest, tmp_path, choices=file)


def test_a_text_longer_than_the_context_is_refused(manifest: dict, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(tiny.WORDS) * 3)

    message = (
        "calibrations.mine.length: 65 tokens are more than the context of model 'small', 64. "
        "Write at most 64"
    )
    with pytest.raises(LaminaError, match=message):
        calibrate(manifest, tmp_path, text="a.txt", documents=None, length=65)
    calibration = calibrate(manifest, tmp_path, text="a.txt", documents=None, length=64)
    assert len(capture_similarities(load_model(manifest), calibration.sequences()))


@pytest.fixture
def cut_samples(manifest: dict, tmp_path: Path) -> list[Sample]:
    """Five questions, of which the last two do not fit with their longer answer.

    A question of 63 tokens fits with an answer of two: the last token is not read.
    """
    file = write_questions(tmp_path, 10, 62, 63, 64, 200)
    calibration = calibrate(manifest, tmp_path, choices=file)
    assert calibration.facts["n_cut"] == 2
    return list(calibration.samples)


def test_a_sweep_scores_cut_questions_as_lm_eval_does(
    manifest: dict, cut_samples: list[Sample], tmp_path: Path
) -> None:
    """Log-likelihoods of each choice, with all layers and without one."""
    model = load_model(manifest)

    scores = sweep_units(model, cut_samples, ["2"])

    task = lm_tasks.task_object("mine", tmp_path, choices="mine.jsonl")
    task.build_all_requests()
    requests = [(("", ""), *encode_words(*instance.args)) for instance in task.instances]
    model_by_unit = {"none": model, "2": apply_edits(share_weights(model), ["2"])}
    for unit, variant in model_by_unit.items():
        lm = HFLM(pretrained=variant, tokenizer=load_tokenizer(manifest), batch_size=1)
        answers = lm._loglikelihood_tokens(requests, disable_tqdm=True)
        expected = [log_likelihood for log_likelihood, _ in answers]
        log_likelihoods = scores.loglikelihood[scores.index[unit]].tolist()
        assert log_likelihoods == pytest.approx(expected, abs=1e-4)


def encode_words(context: str, answer: str) -> tuple[list[int], list[int]]:
    """Tokens of a question and of an answer, without lm-eval."""
    context_tokens = [1 + tiny.WORDS.index(word) for word in context.split()]
    answer_tokens = [1 + tiny.WORDS.index(word) for word in answer.split()]
    return context_tokens, answer_tokens


def test_gradients_and_healing_read_cut_questions(
    manifest: dict, cut_samples: list[Sample]
) -> None:
    model = load_model(manifest)

    gradient_rows = weights.sweep_rows(model, cut_samples, ["2"], [], "gradient", 512)
    objective = Objective("distill", model, model)
    loss, n_answer_tokens = training.accumulate_gradients(objective, [cut_samples], 512)

    assert len(gradient_rows) == 5
    assert loss == 0  # a model differs in nothing from itself
    gold_answers = [sample.rows[sample.gold].continuation for sample in cut_samples]
    assert n_answer_tokens == sum(map(len, gold_answers))

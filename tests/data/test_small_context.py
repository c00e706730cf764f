"""A GPT-2 with learned positions, a context of 64 and a tokenizer with neither BOS nor EOS.

What fits works, and the rest is explained.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from lamina.data import lm_tasks
from lamina.data.calibrations import Row
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
from lamina.models.surgery import remove_units
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from tests.given import tiny

ROOT = Path(__file__).parents[2]
CONTEXT = 64
ENTRY = Model(source="small", dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    tiny.save_without_bos_and_eos(folder, CONTEXT)
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    return describe_model("small", ENTRY, folder)


def questions(root: Path, *lengths: int, **changes: Any) -> str:
    """A file with one question of each length in tokens, its choices of two and one tokens not counted."""
    lines = []
    for number, length in enumerate(lengths):
        words = [tiny.WORDS[(number + 7 * place) % len(tiny.WORDS)] for place in range(length)]
        question = {"query": " ".join(words), "choices": ["w1 w2", "w3"], "gold": number % 2}
        lines.append(json.dumps(question | changes))
    (root / "mine.jsonl").write_text("\n".join(lines))
    return "mine.jsonl"


def calibration(manifest: dict[str, Any], root: Path, **entry: Any) -> Any:
    return prepare_calibration("mine", Calibration.from_options(entry), manifest, root)


def test_questions_longer_than_the_context_lose_their_oldest_tokens_and_run(
    manifest: dict, tmp_path: Path
) -> None:
    """What fits is as lm-eval encodes it."""
    lengths = (10, 61, 62, 63, 64, 65, 200)
    made = calibration(manifest, tmp_path, choices=questions(tmp_path, *lengths))
    assert [len(s.sequence()) for s in made.samples] == [12, 62, 64, 64, 64, 64, 64]
    for number, (sample, length) in enumerate(zip(made.samples, lengths, strict=True)):
        ids = [1 + (number + 7 * place) % len(tiny.WORDS) for place in range(length)]
        for row, answer in zip(sample.rows, ([2, 3], [4]), strict=True):
            kept = (ids + answer)[-(CONTEXT + 1) :][: -len(answer)]
            assert row == Row(tuple(kept), tuple(answer), row.characters, length - len(kept))
    model = load_model(manifest)
    assert all(
        torch.tensor(row["norm"]).isfinite()
        for row in capture_similarities(model, made.sequences())
        if row["span"] == 0
    )
    rows = sweep_units(model, made.samples, ["0", "3"]).rows(["0", "3"])
    assert len(rows) == 14 and all(row["nll"] is not None for row in rows)


def test_questions_need_neither_bos_nor_eos_in_calibrations_and_benchmarks(
    manifest: dict, tmp_path: Path
) -> None:
    """The benchmark's accuracy is that of log-likelihoods taken from the model without lm-eval."""
    file = questions(tmp_path, 5, 9, 20, 30)
    model, made = load_model(manifest), calibration(manifest, tmp_path, choices=file)
    task = lm_tasks.task_object("mine", tmp_path, choices=file)
    scores = TaskBenchmark(task, model, load_tokenizer(manifest)).score(model, "base")
    right = 0
    for sample in made.samples:
        sums = []
        for row in sample.rows:
            ids = torch.tensor([row.context + row.continuation])
            logits = model(ids).logits[0].detach().log_softmax(-1)
            first = len(row.context) - 1
            sums.append(
                sum(float(logits[first + n, token]) for n, token in enumerate(row.continuation))
            )
        right += sums.index(max(sums)) == sample.gold
    assert {row["metric"]: row["value"] for row in scores.metrics}["acc"] == right / 4


def test_where_bos_or_eos_is_needed_the_message_says_so(manifest: dict, tmp_path: Path) -> None:
    with pytest.raises(
        LaminaError, match=r"neither BOS nor EOS, which an empty question.*tokenizer_config.json"
    ):
        calibration(manifest, tmp_path, choices=questions(tmp_path, 5, query=""))
    with pytest.raises(LaminaError, match=r"no EOS, by which a generated answer ends"):
        calibration(manifest, ROOT, task="microworld_sorting", limit=3)


def test_answers_that_leave_no_room_for_questions_are_refused(manifest: dict) -> None:
    task, model = lm_tasks.task_object("microworld_sorting", ROOT), load_model(manifest)
    task.config.generation_kwargs["max_gen_toks"] = CONTEXT
    benchmark = TaskBenchmark(task, model, load_tokenizer(manifest), limit=2)
    with pytest.raises(
        LaminaError, match=r"'microworld_sorting' generates up to 64 .*context of 64.*max_gen_toks"
    ):
        benchmark.score(model, "base")


def test_examples_that_do_not_fit_are_cut_from_the_left(manifest: dict, tmp_path: Path) -> None:
    made = calibration(
        manifest, tmp_path, choices=questions(tmp_path, 20, 21, 22, 23, 24), num_fewshot=4
    )
    assert {len(row.context) + len(row.continuation) for s in made.samples for row in s.rows} == {
        CONTEXT + 1
    }
    plain = calibration(manifest, tmp_path, choices="mine.jsonl")
    for long, short in zip(made.samples, plain.samples, strict=True):
        assert long.rows[0].context[-len(short.rows[0].context) :] == short.rows[0].context


@pytest.mark.parametrize(
    ("answer", "words"),
    [(["w1", " ".join(["w2"] * 65)], "65 tokens, of which 64 fit"), (["w1", "\u200b"], "no token")],
)
def test_an_answer_that_cannot_be_scored_is_refused(
    manifest: dict, folder: Path, tmp_path: Path, answer: list[str], words: str, monkeypatch: Any
) -> None:
    """With a tokenizer that knows no other words, as some have no token for a strange one."""
    load = EncodingLM.tok_encode
    monkeypatch.setattr(
        EncodingLM, "tok_encode", lambda *a, **k: [token for token in load(*a, **k) if token != 0]
    )
    file = questions(tmp_path, 5, choices=answer)
    with pytest.raises(LaminaError, match=f"{words}.*cannot be scored. Leave it out"):
        calibration(manifest, tmp_path, choices=file)


def test_a_text_longer_than_the_context_is_refused(manifest: dict, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(tiny.WORDS) * 3)
    message = r"calibrations.mine.length: 65 tokens are more than the context of model 'small', 64. Write at most 64"
    with pytest.raises(LaminaError, match=message):
        calibration(manifest, tmp_path, text="a.txt", documents=None, length=65)
    made = calibration(manifest, tmp_path, text="a.txt", documents=None, length=64)
    assert len(capture_similarities(load_model(manifest), made.sequences()))


def test_a_sweep_scores_cut_questions_as_stock_lm_eval_does(manifest: dict, tmp_path: Path) -> None:
    """Log-likelihoods of each choice, without a layer and with all; every pass reads what fits into the context."""
    file = questions(tmp_path, 10, 62, 63, 64, 200)
    made, model = calibration(manifest, tmp_path, choices=file), load_model(manifest)
    assert (
        made.facts["n_cut"] == 2
    )  # 63 and an answer of 2 are one more than the context: the last is not read
    task = lm_tasks.task_object("mine", tmp_path, choices=file)
    task.build_all_requests()
    scores = sweep_units(model, made.samples, ["2"])
    for unit, cut in (("none", model), ("2", remove_units(share_weights(model), ["2"]))):
        stock = HFLM(pretrained=cut, tokenizer=load_tokenizer(manifest), batch_size=1)
        encoded = [(("", ""), *_split(instance)) for instance in task.instances]
        expected = [nats for nats, _ in stock._loglikelihood_tokens(encoded, disable_tqdm=True)]
        assert scores.loglikelihood[scores.index[unit]].tolist() == pytest.approx(
            expected, abs=1e-4
        )
    assert len(weights.sweep_rows(model, made.samples, ["2"], [], "gradient", 512)) == 5
    loss, count = training.accumulate_gradients(
        Objective("distill", model, model), [made.samples], 512
    )
    assert (loss, count) == (
        0.0,
        sum(len(sample.rows[sample.gold].continuation) for sample in made.samples),
    )


def _split(instance: Any) -> tuple[list[int], list[int]]:
    """Tokens of a question and of an answer by words, without lm-eval."""
    context, answer = instance.args
    ids = [[1 + tiny.WORDS.index(word) for word in text.split()] for text in (context, answer)]
    return ids[0], ids[1]

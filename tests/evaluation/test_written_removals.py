"""Metric exact_match: removals write the answers that transformers writes on a model cut by hand."""

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, PreTrainedModel

import lamina
from lamina.errors import LaminaError
from lamina.evaluation import written_removals
from lamina.evaluation.generation import JudgedRow, WritingLM, answer_task
from lamina.options.selectors import Selector
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.selection.judging import split_documents
from lamina.selection.removals import removal_rows
from lamina.store import parquet, unfinished
from lamina.store.unfinished import Progress
from tests.families import configurations
from tests.given import tiny

N_LAYERS = 5
UNITS = [str(layer_index) for layer_index in range(N_LAYERS)]
N_QUESTIONS = 20
MAX_TOKENS = 5
EOS = 2
STOP_WORD = "w30"
TASK: dict[str, Any] = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"train": "mine.jsonl", "test": "mine.jsonl"}},
    "output_type": "generate_until",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": [STOP_WORD], "max_gen_toks": MAX_TOKENS, "do_sample": True},
    "metric_list": [{"metric": "exact_match"}],
    "filter_list": [
        {"name": "whole", "filter": [{"function": "take_first"}]},
        {
            "name": "first-word",
            "filter": [
                {"function": "regex", "regex_pattern": "(w[0-9]+)"},
                {"function": "take_first"},
            ],
        },
    ],
}


def cut_by_hand(model: PreTrainedModel, removed: list[int]) -> PreTrainedModel:
    """A model of its own with the weights of the layers that stay, by transformers alone."""
    kept = [layer_index for layer_index in range(N_LAYERS) if layer_index not in removed]
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    if "layer_types" in config.to_dict():
        config.layer_types = [config.layer_types[layer_index] for layer_index in kept]
    weights = {}
    for name, weight in model.state_dict().items():
        in_layer = re.fullmatch(r"(.*layers\.)(\d+)(\..*)", name)
        if in_layer is None:
            weights[name] = weight
        elif int(in_layer[2]) in kept:
            new_index = kept.index(int(in_layer[2]))
            weights[f"{in_layer[1]}{new_index}{in_layer[3]}"] = weight
    cut_model = AutoModelForCausalLM.from_config(config)
    cut_model.load_state_dict(weights)
    return cut_model.eval()


@torch.no_grad()
def write_answer(model: PreTrainedModel, question: str) -> str:
    """What transformers alone writes greedily, before its stops."""
    token_ids = tiny.tokenizer()(question, return_tensors="pt")["input_ids"]
    output = model.generate(
        token_ids,
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        attention_mask=torch.ones_like(token_ids),
    )
    written = output[0, token_ids.shape[1] :].tolist()
    before_end = written[: written.index(EOS)] if EOS in written else written
    return tiny.tokenizer().decode(before_end).split(STOP_WORD)[0].strip()


def is_right(answer: str, gold: str) -> bool:
    """As one of the two filters of the task has it."""
    return answer == gold or re.findall("w[0-9]+", answer)[:1] == [gold]


class WritingProject:
    """A folder with a model and a task, whose right answers are those of one cut model or other."""

    def __init__(
        self, folder: Path, model: PreTrainedModel, n_questions: int = N_QUESTIONS
    ) -> None:
        with torch.no_grad():
            model.get_output_embeddings().weight[EOS] *= 1.2
        model.save_pretrained(folder / "model")
        tiny.tokenizer().save_pretrained(folder / "model")
        self.folder = folder
        self.model = model
        self.answers_without: dict[tuple[int, ...], list[str]] = {}
        generator = random.Random(0)
        self.questions = [
            " ".join(generator.choices(tiny.WORDS, k=generator.randint(2, 9)))
            for _ in range(n_questions)
        ]
        self.golds = []
        for number in range(n_questions):
            removed = () if number % 2 else (number // 2 % N_LAYERS,)
            words = re.findall("w[0-9]+", self.write_answers(removed)[number])
            self.golds.append(words[0] if words else "w1")
        lines = []
        for question, gold in zip(self.questions, self.golds, strict=True):
            lines.append(json.dumps({"q": question, "a": gold}))
        (folder / "mine.jsonl").write_text("\n".join(lines))
        (folder / "workflow/tasks").mkdir(parents=True)
        (folder / "workflow/tasks/mine.yaml").write_text(yaml.safe_dump(TASK))

    def write_answers(self, removed: tuple[int, ...]) -> list[str]:
        """The answers to all questions of the model that is cut by hand."""
        if removed not in self.answers_without:
            cut_model = cut_by_hand(self.model, list(removed))
            answers = [write_answer(cut_model, question) for question in self.questions]
            self.answers_without[removed] = answers
        return self.answers_without[removed]

    def count_right(self, removed: tuple[int, ...]) -> int:
        answers = self.write_answers(removed)
        return sum(is_right(*pair) for pair in zip(answers, self.golds, strict=True))


@pytest.fixture(scope="module")
def written_project(tmp_path_factory: pytest.TempPathFactory) -> WritingProject:
    return WritingProject(tmp_path_factory.mktemp("writing"), tiny.model())


@pytest.fixture
def project(written_project: WritingProject, monkeypatch: pytest.MonkeyPatch) -> WritingProject:
    monkeypatch.chdir(written_project.folder)
    return written_project


def open_task(folder: str = "model") -> tuple[Any, Any, Any]:
    """The model, its calibration and its questions."""
    base = lamina.open_model(folder, dtype="float32", device="cpu")
    calibration = lamina.prepare(base, "mine", task="mine", limit=None)
    questions = written_removals.draw_questions(
        "mine",
        calibration.entry,
        calibration.content.samples,
        base.model,
        base.manifest,
        Path.cwd(),
    )
    return base, calibration, questions


@pytest.fixture
def written_texts(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Grows by the answers of each candidate in turn, as texts."""
    texts: list[list[str]] = []

    def answer_and_keep(task: Any, writer: WritingLM, asked: Any) -> Iterator[JudgedRow]:
        rows = list(answer_task(task, writer, asked))
        texts.append(
            [tiny.tokenizer().decode(writer.answers[row.row.context].tokens) for row in rows]
        )
        yield from rows

    monkeypatch.setattr(written_removals, "answer_task", answer_and_keep)
    return texts


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mamba"])
def test_removals_write_what_transformers_writes_on_a_model_cut_by_hand(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_texts: list[list[str]]
) -> None:
    """Caches of all tokens, of windows in some layers, and of states; after one removal too."""
    monkeypatch.chdir(tmp_path)
    model = tiny.model(family) if family in tiny.CONFIGS else configurations.model(family)
    project = WritingProject(tmp_path, model, n_questions=8)
    base, calibration, questions = open_task()

    rows = removal_rows(
        base.model,
        {"mine": calibration.content},
        UNITS[2:],
        ["1"],
        "generate",
        questions=questions,
    )

    cuts = [(1,), *((1, layer_index) for layer_index in range(2, N_LAYERS))]
    assert written_texts == [project.write_answers(removed) for removed in cuts]
    assert len({tuple(texts) for texts in written_texts}) == len(cuts)
    n_right = dict.fromkeys(("none", *UNITS[2:]), 0)
    for row in rows:
        n_right[row["unit"]] += row["written_correct"]
    assert list(n_right.values()) == [project.count_right(removed) for removed in cuts]


def test_the_score_is_the_share_of_right_answers_that_is_lost(project: WritingProject) -> None:
    base, calibration, questions = open_task()
    rows = written_removals.sweep_rows(
        base.model, calibration.content.samples, UNITS, [], questions
    )

    relevance = score_sweep(parquet.from_rows("sweeps", rows), ["exact_match"], Context(), 0)

    n_base = project.count_right(())
    assert n_base > N_QUESTIONS // 4
    for row in relevance:
        lost_share = 1 - project.count_right((row["layer"],)) / n_base
        assert row["score"] == pytest.approx(lost_share)
        assert row["ci_low"] <= row["score"] <= row["ci_high"]
    assert len({row["score"] for row in relevance}) > 2


def choose_by_hand(project: WritingProject, removed: tuple[int, ...]) -> int:
    """The layer without which most answers are right, the deepest of equal ones."""
    left = [layer for layer in range(N_LAYERS) if layer not in removed]
    return max(
        left, key=lambda layer: (project.count_right(tuple(sorted({*removed, layer}))), layer)
    )


def test_layers_go_by_the_answers_that_cut_models_write(project: WritingProject) -> None:
    base, calibration, _ = open_task()

    (stepwise,) = lamina.select(base, calibration, [2], strategy="iterative", metric="exact_match")
    (at_once,) = lamina.select(base, calibration, [2], strategy="one_shot", metric="exact_match")

    first = choose_by_hand(project, ())
    second = choose_by_hand(project, (first,))
    assert stepwise.plan.units == [str(first), str(second)]
    expected_shares = [
        project.count_right(removed) / N_QUESTIONS
        for removed in ((), (first,), tuple(sorted((first, second))))
    ]
    assert stepwise.plan.accuracy_before == pytest.approx(expected_shares[:2])
    assert stepwise.plan.accuracy_after == pytest.approx(expected_shares[1:])
    by_share = sorted(range(N_LAYERS), key=lambda layer: (-project.count_right((layer,)), -layer))
    assert at_once.plan.units == [str(layer) for layer in by_share[:2]]


def test_the_last_sets_of_a_portfolio_are_judged_by_their_written_answers(
    project: WritingProject,
) -> None:
    base, calibration, _ = open_task()
    options: dict[str, Any] = {"members": ["cosine", "perplexity", "output_kl"], "exchanges": 6}

    (chosen,) = lamina.select(
        base,
        calibration,
        [2],
        strategy="portfolio",
        judge_by="written",
        repairs={"ghost": {"method": "ghost"}},
        **options,
    )

    selector = Selector.from_options({"strategy": "portfolio"} | options)
    _, judges = split_documents({"mine": calibration.content}, selector)
    judging = [sample.index for sample in judges["mine"]]
    written = chosen.plan.choice["written"]
    assert 0 < len(judging) < N_QUESTIONS
    assert len(written) == 2 * 4  # four sets, bare and repaired
    for form in written:
        if form["repair"] == "none":
            removed = tuple(sorted(int(unit) for unit in form["units"]))
            answers = project.write_answers(removed)
            n_right = sum(is_right(answers[index], project.golds[index]) for index in judging)
            assert form["right"] == n_right / len(judging)
    winner = {"units": chosen.plan.units, "repair": chosen.plan.choice["repair"]}
    (winning_form,) = [form for form in written if winner.items() <= form.items()]
    assert winning_form["right"] == max(form["right"] for form in written)


def test_the_last_sets_may_write_answers_to_the_questions_that_the_model_answers_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = WritingProject(tmp_path, tiny.model(), n_questions=30)
    base = lamina.open_model("model", dtype="float32", device="cpu")
    own_answers = lamina.prepare(
        base, "mine", task="mine", limit=None, answers="model", keep="right"
    )
    options: dict[str, Any] = {"members": ["cosine", "perplexity"], "exchanges": 0}

    (chosen,) = lamina.select(
        base, own_answers, [2], strategy="portfolio", judge_by="written", **options
    )

    right_questions = [
        index
        for index, answer in enumerate(project.write_answers(()))
        if is_right(answer, project.golds[index])
    ]
    assert len(own_answers.content.samples) == len(right_questions) < 30
    selector = Selector.from_options({"strategy": "portfolio"} | options)
    _, judges = split_documents({"mine": own_answers.content}, selector)
    judging = [right_questions[sample.index] for sample in judges["mine"]]
    for form in chosen.plan.choice["written"]:
        answers = project.write_answers(tuple(sorted(int(unit) for unit in form["units"])))
        n_right = sum(is_right(answers[index], project.golds[index]) for index in judging)
        assert form["right"] == n_right / len(judging)


def test_a_killed_pass_goes_on_with_the_next_unit(
    project: WritingProject, written_texts: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "SECONDS", 0.0)
    base, calibration, questions = open_task()
    samples = calibration.content.samples
    progress = Progress("progress", "key")
    rows = written_removals.sweep_rows(
        base.model, samples, UNITS[:2], [], questions, progress=progress
    )

    all_rows = written_removals.sweep_rows(
        base.model, samples, UNITS, [], questions, progress=progress
    )

    assert all_rows[: len(rows)] == rows
    assert len(written_texts) == 1 + N_LAYERS
    assert written_texts == [
        project.write_answers(removed) for removed in [(), *zip(range(N_LAYERS))]
    ]


def test_a_removal_that_gives_nan_answers_nothing_right(
    project: WritingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, calibration, questions = open_task()
    samples = calibration.content.samples
    base.model.model.layers[3].input_layernorm.weight.data.fill_(torch.nan)

    rows = written_removals.sweep_rows(
        base.model, samples, ["0", "3"], [], questions, with_current=False
    )

    n_right = {"0": 0, "3": 0}
    for row in rows:
        n_right[row["unit"]] += row["written_correct"]
    assert n_right == {"0": 0, "3": project.count_right((3,))}
    with pytest.raises(LaminaError, match="the base model gives NaN"):
        written_removals.sweep_rows(base.model, samples, [], [], questions)

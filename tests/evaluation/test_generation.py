"""What models write: exact match and samples against plain loops, pass@k against all subsets, repetition by hand."""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lamina import paths
from lamina.data.lm_tasks import task_object
from lamina.engine.footprint import Shape
from lamina.errors import LaminaError
from lamina.evaluation import generation
from lamina.evaluation.generation import GenerationBenchmark, pass_at, repeated_share
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.options.benchmarks import Generate, TaskEntry
from lamina.store import parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.cost import estimate
from lamina_workflow.cost.forecast import Stage
from lamina_workflow.cost.work import Tokens
from lamina_workflow.study import requests
from lamina_workflow.study.tables import files_of_table
from tests.given import tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data

LONGEST = 6


@torch.no_grad()
def plainly(
    model: PreTrainedModel, query: str, uniform: list[float] | None = None, temperature: float = 1.0
) -> Any:
    """Tokens written to one question, one at a time without cache or padding, and whether they came to an end."""
    ids, words = tiny.tokenizer()(query)["input_ids"], []
    for step in range(LONGEST):
        shares = (
            (model(torch.tensor([ids + words])).logits[0, -1].double() / temperature)
            .softmax(-1)
            .tolist()
        )
        token = shares.index(max(shares))
        if uniform is not None:
            passed, token = shares[0], 0
            while passed <= uniform[step]:
                token += 1
                passed += shares[token]
        if token == 2:
            return words, True
        words.append(token)
    return words, False


def variants() -> list[PreTrainedModel]:
    """A base that ends some answers early, and two cuts of it."""
    base = tiny.model()
    with torch.no_grad():
        base.lm_head.weight[2] *= 3
    return [base, materialise(base, {"units": ["2"]}), materialise(base, {"units": ["4", "1"]})]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of several lengths; the base writes the right choice of two in three, and ends what it writes."""
    draw, path, base = (
        random.Random(0),
        tmp_path_factory.mktemp("task") / "questions.jsonl",
        variants()[0],
    )
    records = []
    while len(records) < 16:
        query = " ".join(draw.choices(tiny.WORDS, k=draw.randint(2, 9)))
        tokens, stopped = plainly(base, query)
        right = (
            tiny.tokenizer().decode(tokens) if stopped and tokens and len(records) % 3 else "w1 w2"
        )
        records.append({"query": query, "choices": ["w3", right, "w4"], "gold": 1})
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def benchmark(questions: Path, options: Generate, limit: int | None = None) -> GenerationBenchmark:
    task = task_object("mine", questions.parent, 0, str(questions))
    return GenerationBenchmark(task, variants()[0], tiny.tokenizer(), options, limit)


def of(scores: Any, metric: str) -> dict[int, float]:
    return {row["sample"]: row["value"] for row in scores.samples if row["metric"] == metric}


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n in range(1, 7):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations(range(n), k))
                assert pass_at(k, n, correct) == pytest.approx(
                    sum(min(s) < correct for s in subsets) / len(subsets)
                )


def test_repetition_by_hand() -> None:
    assert repeated_share([1, 2, 1, 2, 1, 2], 2) == pytest.approx(3 / 5)  # 12 21 12 21 12
    assert repeated_share([1, 2, 1, 2, 1, 2], 4) == pytest.approx(1 / 3)  # 1212 2121 1212
    assert (
        repeated_share([7] * 13, 4) == pytest.approx(0.9) and repeated_share(list(range(9)), 1) == 0
    )
    assert repeated_share([1, 1, 1], 4) == repeated_share([], 1) == 0


def test_written_answers_equal_a_plain_loop_on_each_cut_model(questions: Path) -> None:
    records = [json.loads(line) for line in questions.read_text().splitlines()]
    ours = benchmark(questions, Generate(max_tokens=LONGEST, ngram=1))
    shares = []
    for model in variants():
        scores = ours.score(model, "x")
        plain = [plainly(model, record["query"]) for record in records]
        right = [
            tiny.tokenizer().decode(t) == r["choices"][1]
            for (t, _), r in zip(plain, records, strict=True)
        ]
        assert list(of(scores, "exact_match,written").values()) == right
        assert list(of(scores, "unstopped").values()) == [not stopped for _, stopped in plain]
        assert list(of(scores, "repetition").values()) == [
            repeated_share(tokens, 1) for tokens, _ in plain
        ]
        rows = {row["metric"]: row for row in scores.metrics}
        assert list(of(scores, "length").values()) == [len(tokens) for tokens, _ in plain]
        assert set(rows) == {"exact_match,written", "repetition", "unstopped", "length"}
        assert (
            rows["exact_match,written"]["value"] == sum(right) / 16
            and rows["unstopped"]["n_samples"] == 16
        )
        assert (
            rows["exact_match,written"]["higher_is_better"]
            and not rows["repetition"]["higher_is_better"]
        )
        error = (torch.tensor([float(not stopped) for _, stopped in plain]).std() / 16**0.5).item()
        assert rows["unstopped"]["stderr"] == pytest.approx(error)
        shares.append(sum(right) / 16)
        parquet.from_rows("benchmarks", scores.metrics, model="m")
        parquet.from_rows("benchmark_samples", scores.samples, model="m")
    assert 0 < shares[0] < 1 and shares[0] != shares[1]


@pytest.mark.parametrize(
    "published",
    [
        {"repetition_penalty": 1.8},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(4, 20))},
        {"bad_words_ids": [[token] for token in range(4, 20)]},
        {"min_new_tokens": 5},
        {"forced_eos_token_id": 2},
        {"exponential_decay_length_penalty": (1, 30.0)},
        {"num_beams": 3},
    ],
    ids=lambda published: next(iter(published)),
)
def test_the_likeliest_tokens_are_written_whatever_the_model_was_published_with(
    questions: Path, published: dict[str, Any]
) -> None:
    """Against a loop of argmax, for written choices and for a task that generates by itself."""
    model = variants()[1]
    records = [json.loads(line) for line in questions.read_text().splitlines()]
    likeliest = [plainly(model, record["query"])[0] for record in records]
    right = [
        tiny.tokenizer().decode(tokens) == record["choices"][1]
        for tokens, record in zip(likeliest, records, strict=True)
    ]
    model.generation_config.update(**published)
    prompts = [tiny.tokenizer()(record["query"])["input_ids"] for record in records]
    ruled = [
        model.generate(torch.tensor([prompt]), max_new_tokens=LONGEST)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    ends = [[*tokens, 2][: [*tokens, 2].index(2)] for tokens in ruled]
    assert ends != likeliest, "the setting changes nothing, so this test would show nothing"

    chosen = benchmark(questions, Generate(max_tokens=LONGEST))
    scores = chosen.score(model, "x")
    answers = [chosen.writer.answers[tuple(prompt)].tokens for prompt in prompts]
    assert answers == likeliest
    assert list(of(scores, "exact_match,written").values()) == right

    task = generation.write_choices(task_object("mine", questions.parent, 0, str(questions)))
    task.set_config("generation_kwargs", {"until": ["\n"], "max_gen_toks": LONGEST})
    by_itself = TaskBenchmark(task, variants()[0], tiny.tokenizer()).score(model, "x")
    assert list(of(by_itself, "exact_match,written").values()) == right
    setting = next(iter(published))
    assert getattr(model.generation_config, setting) == published[setting]


def test_a_task_that_generates_keeps_its_own_exact_match_to_itself(questions: Path) -> None:
    """Only pass@k and what answers look like are added; its own limit holds, under whichever name it gives it."""
    task = generation.write_choices(task_object("mine", questions.parent, 0, str(questions)))
    task.set_config(
        "generation_kwargs",
        {"until": ["w9"], "max_new_tokens": 3, "do_sample": True, "temperature": 0.5},
    )
    ours = GenerationBenchmark(
        task, variants()[0], tiny.tokenizer(), Generate(samples=2, pass_at=[2]), 6
    )
    found = [row["metric"] for row in ours.score(variants()[1], "x").metrics]
    assert found[:4] == ["repetition", "unstopped", "length", "pass@2,written"] and len(found) == 7
    assert max(len(answer.tokens) for answer in ours.writer.answers.values()) == 3


def test_what_cannot_be_written_is_explained(questions: Path) -> None:
    with pytest.raises(
        LaminaError, match=r"generate.max_tokens: 200 tokens leave no room .* context of 128"
    ):
        benchmark(questions, Generate(max_tokens=200))
    task = generation.write_choices(task_object("mine", questions.parent, 0, str(questions)))
    task._aggregation_list["bleu"] = task._aggregation_list.pop("exact_match")
    with pytest.raises(LaminaError, match=r"mine.generate.samples: task 'mine' has no exact_match"):
        GenerationBenchmark(task, variants()[0], tiny.tokenizer(), Generate(samples=2))
    task.config.output_type = "loglikelihood"
    with pytest.raises(LaminaError, match=r"mine.generate: task 'mine' scores by loglikelihood"):
        GenerationBenchmark(task, variants()[0], tiny.tokenizer(), Generate())
    with pytest.raises(LaminaError, match=r"pass@5 needs 5 samples, but there are 2"):
        Generate.from_options({"samples": 2, "pass_at": [1, 5]})
    model, ours = variants()[0], benchmark(questions, Generate(samples=1, max_tokens=2), 4)
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(LaminaError, match="the variant q gives NaN during the generation"):
        ours.score(model, "the variant q")


def test_writing_has_jobs_of_its_own_and_leaves_the_choices_alone(tmp_path: Path) -> None:
    assert TaskEntry().options() == TaskEntry(generate=Generate(samples=3)).options() == {}
    root = write_model_and_data(tmp_path)
    config = load_configuration(minimal_config(), root)
    assert requests.generation_blocks(config) == []
    name = next(iter(config.benchmarks.tasks))
    written = load_configuration(
        set_key(minimal_config(), f"benchmarks.tasks.{name}.generate", {}), root
    )
    blocks = [block for block in requests.benchmark_blocks(config) if block[2] == name]
    assert requests.generation_blocks(written) == blocks and blocks
    tables = files_of_table(written, "benchmarks"), files_of_table(config, "benchmarks")
    assert set(tables[0]) - set(tables[1]) == {paths.generation(*block) for block in blocks}
    sampled = load_configuration(
        set_key(minimal_config(), f"benchmarks.tasks.{name}.generate", {"samples": 4}), root
    )
    work = [estimated(each) for each in (config, written, sampled)]
    assert work[1].jobs - work[0].jobs == len(blocks)
    assert (
        work[2].layer_tokens - work[0].layer_tokens
        == 5 * (work[1].layer_tokens - work[0].layer_tokens)
        > 0
    )


def estimated(config: Any) -> Stage:
    """What the benchmarks of a configuration cost, with ten tokens in everything."""
    tokens = Tokens(1, 10, 10, 10, 10, 5)
    models = {
        name: {"n_layers": 8, "layer_parameters": 5, "hidden_size": 4} for name in config.models
    }
    drawn = {(m, c): tokens for m in models for c in config.calibrations}
    named = [*config.benchmarks.tasks, *config.benchmarks.perplexity]
    shapes = dict.fromkeys(models, Shape(8, 4, 8, 64, 4))
    works = estimate.Works(
        config, models, shapes, drawn, {(m, t): tokens for m in models for t in named}
    )
    return estimate.sum_by_stage(works)["benchmark"]

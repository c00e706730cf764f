"""What models write, against plain loops; pass@k against all subsets, repetition by hand."""

import json
import random
from dataclasses import dataclass
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

MAX_TOKENS = 6
EOS = 2
N_QUESTIONS = 16


@dataclass(frozen=True)
class WrittenAnswer:
    token_ids: list[int]
    is_stopped: bool  # by an EOS, which is not among the tokens


@torch.no_grad()
def write_greedily(model: PreTrainedModel, query: str) -> WrittenAnswer:
    """The most likely tokens after a question, one at a time without cache or padding."""
    prompt = tiny.tokenizer()(query)["input_ids"]
    token_ids: list[int] = []
    for _ in range(MAX_TOKENS):
        logits = model(torch.tensor([prompt + token_ids])).logits[0, -1]
        token_id = int(logits.argmax())
        if token_id == EOS:
            return WrittenAnswer(token_ids, True)
        token_ids.append(token_id)
    return WrittenAnswer(token_ids, False)


def some_variants() -> list[PreTrainedModel]:
    """A base model that ends some answers early, and two cuts of it."""
    base = tiny.model()
    with torch.no_grad():
        base.lm_head.weight[EOS] *= 3
    return [base, materialise(base, {"units": ["2"]}), materialise(base, {"units": ["4", "1"]})]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of several lengths.

    The base model writes the right choice of two in three, where it ends its answer.
    """
    path = tmp_path_factory.mktemp("task") / "questions.jsonl"
    generator = random.Random(0)
    base = some_variants()[0]
    lines = []
    for number in range(N_QUESTIONS):
        query = " ".join(generator.choices(tiny.WORDS, k=generator.randint(2, 9)))
        answer = write_greedily(base, query)
        right_choice = "w1 w2"
        if answer.is_stopped and answer.token_ids and number % 3:
            right_choice = tiny.tokenizer().decode(answer.token_ids)
        question = {"query": query, "choices": ["w3", right_choice, "w4"], "gold": 1}
        lines.append(json.dumps(question))
    path.write_text("\n".join(lines))
    return path


def read_questions(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def choice_task(questions: Path) -> Any:
    return task_object("mine", questions.parent, 0, str(questions))


def open_benchmark(
    questions: Path, options: Generate, limit: int | None = None
) -> GenerationBenchmark:
    return GenerationBenchmark(
        choice_task(questions), some_variants()[0], tiny.tokenizer(), options, limit
    )


def sample_values(scores: Any, metric: str) -> list[float]:
    return [row["value"] for row in scores.samples if row["metric"] == metric]


def are_right(answers: list[WrittenAnswer], records: list[dict[str, Any]]) -> list[bool]:
    """Whether each answer is the text of its right choice."""
    decoded = [tiny.tokenizer().decode(answer.token_ids) for answer in answers]
    right_choices = [record["choices"][record["gold"]] for record in records]
    return [text == choice for text, choice in zip(decoded, right_choices, strict=True)]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n_answers in range(1, 7):
        for n_right in range(n_answers + 1):
            for k in range(1, n_answers + 1):
                subsets = list(combinations(range(n_answers), k))
                # The first answers are the right ones.
                n_passing = sum(min(subset) < n_right for subset in subsets)
                expected = n_passing / len(subsets)
                assert pass_at(k, n_answers, n_right) == pytest.approx(expected)


def test_repetition_by_hand() -> None:
    assert repeated_share([1, 2, 1, 2, 1, 2], 2) == pytest.approx(3 / 5)  # 12 21 12 21 12
    assert repeated_share([1, 2, 1, 2, 1, 2], 4) == pytest.approx(1 / 3)  # 1212 2121 1212
    assert repeated_share([7] * 13, 4) == pytest.approx(0.9)
    assert repeated_share(list(range(9)), 1) == 0
    assert repeated_share([1, 1, 1], 4) == 0
    assert repeated_share([], 1) == 0


@pytest.mark.parametrize("variant_index", range(3))
def test_written_answers_are_those_of_a_plain_loop(variant_index: int, questions: Path) -> None:
    records = read_questions(questions)
    variant = some_variants()[variant_index]
    benchmark = open_benchmark(questions, Generate(max_tokens=MAX_TOKENS, ngram=1))

    scores = benchmark.score(variant, "x")

    answers = [write_greedily(variant, record["query"]) for record in records]
    is_right = are_right(answers, records)
    is_unstopped = [not answer.is_stopped for answer in answers]
    assert sample_values(scores, "exact_match,written") == is_right
    assert sample_values(scores, "unstopped") == is_unstopped
    assert sample_values(scores, "length") == [len(answer.token_ids) for answer in answers]
    repetition = [repeated_share(answer.token_ids, 1) for answer in answers]
    assert sample_values(scores, "repetition") == repetition

    row_by_metric = {row["metric"]: row for row in scores.metrics}
    assert set(row_by_metric) == {"exact_match,written", "repetition", "unstopped", "length"}
    assert row_by_metric["exact_match,written"]["value"] == sum(is_right) / N_QUESTIONS
    assert row_by_metric["exact_match,written"]["higher_is_better"]
    assert not row_by_metric["repetition"]["higher_is_better"]
    assert row_by_metric["unstopped"]["n_samples"] == N_QUESTIONS
    stderr = torch.tensor(is_unstopped).float().std() / N_QUESTIONS**0.5
    assert row_by_metric["unstopped"]["stderr"] == pytest.approx(float(stderr))
    parquet.from_rows("benchmarks", scores.metrics, model="m")
    parquet.from_rows("benchmark_samples", scores.samples, model="m")


def test_the_base_model_is_right_now_and_then_and_a_cut_changes_that(questions: Path) -> None:
    """So that the tests on these questions can fail."""
    records = read_questions(questions)
    base, cut, _ = some_variants()
    n_right_of_base = sum(are_right([write_greedily(base, r["query"]) for r in records], records))
    n_right_of_cut = sum(are_right([write_greedily(cut, r["query"]) for r in records], records))
    assert 0 < n_right_of_base < N_QUESTIONS
    assert n_right_of_cut != n_right_of_base


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("repetition_penalty", 1.8),
        ("no_repeat_ngram_size", 1),
        ("suppress_tokens", list(range(4, 20))),
        ("bad_words_ids", [[token] for token in range(4, 20)]),
        ("min_new_tokens", 5),
        ("forced_eos_token_id", EOS),
        ("exponential_decay_length_penalty", (1, 30.0)),
        ("num_beams", 3),
    ],
)
def test_the_most_likely_tokens_are_written_whatever_the_model_was_published_with(
    questions: Path, setting: str, value: Any
) -> None:
    """For written choices, and for a task that generates by itself."""
    variant = some_variants()[1]
    records = read_questions(questions)
    prompts = [tiny.tokenizer()(record["query"])["input_ids"] for record in records]
    answers = [write_greedily(variant, record["query"]) for record in records]
    is_right = are_right(answers, records)
    variant.generation_config.update(**{setting: value})
    published_answers = [generate_as_published(variant, prompt) for prompt in prompts]
    assert published_answers != [answer.token_ids for answer in answers]

    choice_benchmark = open_benchmark(questions, Generate(max_tokens=MAX_TOKENS))
    choice_scores = choice_benchmark.score(variant, "x")
    written = [choice_benchmark.writer.answers[tuple(prompt)].tokens for prompt in prompts]
    assert written == [answer.token_ids for answer in answers]
    assert sample_values(choice_scores, "exact_match,written") == is_right

    task = generation.write_choices(choice_task(questions))
    task.set_config("generation_kwargs", {"until": ["\n"], "max_gen_toks": MAX_TOKENS})
    task_scores = TaskBenchmark(task, some_variants()[0], tiny.tokenizer()).score(variant, "x")
    assert sample_values(task_scores, "exact_match,written") == is_right
    assert getattr(variant.generation_config, setting) == value


def generate_as_published(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """What transformers writes with the settings of the model, up to an EOS."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=MAX_TOKENS)[0].tolist()
    token_ids = output[len(prompt) :]
    return token_ids[: token_ids.index(EOS)] if EOS in token_ids else token_ids


def test_a_task_that_generates_has_its_own_exact_match_and_its_own_limit(questions: Path) -> None:
    """Only pass@k and what describes answers is added."""
    task = generation.write_choices(choice_task(questions))
    generation_options = {
        "until": ["w9"],
        "max_new_tokens": 3,
        "do_sample": True,
        "temperature": 0.5,
    }
    task.set_config("generation_kwargs", generation_options)
    options = Generate(samples=2, pass_at=[2])
    base, variant, _ = some_variants()
    benchmark = GenerationBenchmark(task, base, tiny.tokenizer(), options, 6)

    metrics = [row["metric"] for row in benchmark.score(variant, "x").metrics]

    assert metrics[:4] == ["repetition", "unstopped", "length", "pass@2,written"]
    assert len(metrics) == 7
    lengths = [len(answer.tokens) for answer in benchmark.writer.answers.values()]
    assert max(lengths) == 3


def test_answers_that_leave_no_room_for_questions_are_refused(questions: Path) -> None:
    message = r"generate.max_tokens: 200 tokens leave no room .* context of 128"
    with pytest.raises(LaminaError, match=message):
        open_benchmark(questions, Generate(max_tokens=200))


def test_samples_need_a_task_with_exact_match(questions: Path) -> None:
    task = generation.write_choices(choice_task(questions))
    task._aggregation_list["bleu"] = task._aggregation_list.pop("exact_match")
    message = r"mine.generate.samples: task 'mine' has no exact_match"
    with pytest.raises(LaminaError, match=message):
        GenerationBenchmark(task, some_variants()[0], tiny.tokenizer(), Generate(samples=2))


def test_a_task_without_answers_to_write_is_refused(questions: Path) -> None:
    task = generation.write_choices(choice_task(questions))
    task.config.output_type = "loglikelihood"
    message = r"mine.generate: task 'mine' scores by loglikelihood"
    with pytest.raises(LaminaError, match=message):
        GenerationBenchmark(task, some_variants()[0], tiny.tokenizer(), Generate())


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(LaminaError, match=r"pass@5 needs 5 samples, but there are 2"):
        Generate.from_options({"samples": 2, "pass_at": [1, 5]})


def test_a_variant_that_gives_nan_is_named(questions: Path) -> None:
    model = some_variants()[0]
    benchmark = open_benchmark(questions, Generate(samples=1, max_tokens=2), 4)
    with torch.no_grad():
        layers_of(model)[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(LaminaError, match="the variant q gives NaN during the generation"):
        benchmark.score(model, "the variant q")


def config_with_generation(root: Path, options: dict[str, Any] | None) -> Any:
    """A configuration whose first task has these options of generation, or none."""
    raw_config = minimal_config()
    if options is not None:
        task = next(iter(raw_config["benchmarks"]["tasks"]))
        set_key(raw_config, f"benchmarks.tasks.{task}.generate", options)
    return load_configuration(raw_config, root)


def test_generation_changes_no_option_of_the_choices() -> None:
    assert TaskEntry().options() == {}
    assert TaskEntry(generate=Generate(samples=3)).options() == {}


def test_generation_has_its_own_jobs_and_files(tmp_path: Path) -> None:
    root = write_model_and_data(tmp_path)
    config = config_with_generation(root, None)
    generating_config = config_with_generation(root, {})

    task = next(iter(config.benchmarks.tasks))
    blocks = [block for block in requests.benchmark_blocks(config) if block[2] == task]
    assert blocks
    assert requests.generation_blocks(config) == []
    assert requests.generation_blocks(generating_config) == blocks
    files = set(files_of_table(config, "benchmarks"))
    generating_files = set(files_of_table(generating_config, "benchmarks"))
    assert generating_files - files == {paths.generation(*block) for block in blocks}


def test_the_cost_of_generation_grows_with_its_samples(tmp_path: Path) -> None:
    """Four samples and the greedy answer are five times the greedy answer alone."""
    root = write_model_and_data(tmp_path)
    generating_config = config_with_generation(root, {})
    choices_cost = estimate_benchmarks(config_with_generation(root, None))
    greedy_cost = estimate_benchmarks(generating_config)
    sampled_cost = estimate_benchmarks(config_with_generation(root, {"samples": 4}))

    n_blocks = len(requests.generation_blocks(generating_config))
    assert greedy_cost.jobs - choices_cost.jobs == n_blocks
    greedy_tokens = greedy_cost.layer_tokens - choices_cost.layer_tokens
    sampled_tokens = sampled_cost.layer_tokens - choices_cost.layer_tokens
    assert greedy_tokens > 0
    assert sampled_tokens == 5 * greedy_tokens


def estimate_benchmarks(config: Any) -> Stage:
    """What the benchmarks of a configuration cost, with ten tokens in everything."""
    tokens = Tokens(1, 10, 10, 10, 10, 5)
    manifest = {"path": "small", "n_layers": 8, "layer_parameters": 5, "hidden_size": 4}
    manifests = dict.fromkeys(config.models, manifest)
    shapes = dict.fromkeys(config.models, Shape(8, 4, 8, 64, 4))
    benchmark_names = [*config.benchmarks.tasks, *config.benchmarks.perplexity]
    calibration_tokens = {}
    benchmark_tokens = {}
    for model in config.models:
        for calibration in config.calibrations:
            calibration_tokens[model, calibration] = tokens
        for name in benchmark_names:
            benchmark_tokens[model, name] = tokens
    works = estimate.Works(config, manifests, shapes, calibration_tokens, benchmark_tokens)
    return estimate.sum_by_stage(works)["benchmark"]

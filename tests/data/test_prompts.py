"""Prompts are those of lm-eval's command line, but for examples that hold the question itself."""

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lamina.data import lm_tasks, prompts
from lamina.data.encoding import open_encoder
from lamina.data.prompts import Style
from lamina.errors import LaminaError
from lamina.evaluation.tasks import TaskBenchmark
from lamina.options.calibrations import FEWSHOT_SEED
from tests.given import tiny
from tests.given.tasks import evaluate_with_lm_eval, make_task

Document = dict[str, Any]

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} w0 {{ m['content'] }} w50 {% endfor %}"
    "{% if thinking is defined %}{{ thinking }} {% endif %}"
    "{% if add_generation_prompt %}assistant w0 {% endif %}"
)


def random_documents(n_documents: int, seed: int) -> list[Document]:
    """Questions of different texts, with three choices of two words."""
    generator = random.Random(seed)
    documents = []
    for number in range(n_documents):
        question = f"q{seed} {number} " + " ".join(generator.choices(tiny.WORDS, k=3))
        first_words = generator.sample(tiny.WORDS, 3)
        second_words = generator.sample(tiny.WORDS, 3)
        choices = [" ".join(pair) for pair in zip(first_words, second_words, strict=True)]
        documents.append({"q": question, "c": choices, "g": generator.randrange(3)})
    return documents


def requests(task: ConfigurableTask) -> list[tuple[Any, ...]]:
    """What a task asks a model: the index of the document, the prompt, the answer."""
    return [(instance.doc_id, *instance.args) for instance in task.instances]


@pytest.mark.parametrize("output_type", ["multiple_choice", "generate_until"])
@pytest.mark.parametrize(
    "style",
    [
        Style(),
        Style(chat_template=True, system="w9 w8 w7"),
        Style(chat_template=True, turns=False),
        Style(chat_template=True, arguments={"thinking": "w33"}),
        Style(system="w9 w8"),
    ],
    ids=["plain", "chat and system", "one turn", "argument", "system without a template"],
)
def test_requests_and_numbers_are_those_of_simple_evaluate(style: Style, output_type: str) -> None:
    splits = {"train": random_documents(30, 1), "test": random_documents(12, 2)}
    task_options = {"training_split": "train", "test_split": "test", "description": "w5 w5"}
    model = tiny.model()
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    benchmark_task = make_task(splits, output_type, **task_options)
    calibration_task = make_task(splits, output_type, **task_options)
    lm_eval_task = make_task(splits, output_type, **task_options)

    benchmark = TaskBenchmark(benchmark_task, model, tokenizer, style=style)
    scores = benchmark.score(model, "base")
    lm_tasks.task_samples(calibration_task, open_encoder(model, tokenizer), None, 0, style)

    style_options: dict[str, Any] = {}
    if style.chat_template:
        style_options["apply_chat_template"] = True
    if not style.turns:
        style_options["fewshot_as_multiturn"] = False
    expected = evaluate_with_lm_eval(
        HFLM(pretrained=model, tokenizer=tokenizer, chat_template_args=dict(style.arguments)),
        lm_eval_task,
        num_fewshot=5,
        system_instruction=style.system,
        **style_options,
    )
    requests_per_document = 3 if output_type == "multiple_choice" else 1
    assert len(requests(lm_eval_task)) == 12 * requests_per_document
    assert requests(benchmark.task) == requests(lm_eval_task)
    assert requests(calibration_task) == requests(lm_eval_task)
    for row in scores.metrics:
        expected_value = expected["results"]["made"][f"{row['metric']},none"]
        assert row["value"] == pytest.approx(expected_value)


SPLIT_KEYS = ("training_split", "validation_split", "test_split", "fewshot_split")
# The splits of a task by these keys, and its sampler. Names matter only where they are equal.
Combination = tuple[str | None, str | None, str | None, str | None, str | None]
COMMON_COMBINATIONS: set[Combination] = {
    ("s0", "s1", "s2", None, None),
    ("s0", None, "s0", None, "first_n"),
    ("s0", "s1", None, "s0", None),
    (None, "s1", "s2", "s1", None),
    (None, None, "s2", "s2", "first_n"),
    (None, None, "s2", None, None),
}


def combinations_of_lm_eval() -> set[Combination]:
    """The splits that lm-eval's own tasks name, each combination once."""
    combinations = set()
    for entry in TaskManager().task_index.values():
        task_config = entry.cfg or {}
        names = [task_config.get(key) for key in SPLIT_KEYS]
        are_names = all(name is None or isinstance(name, str) for name in names)
        if not are_names or not any(names[:3]):
            continue
        short_names = [None if name is None else f"s{names.index(name)}" for name in names]
        examples = task_config.get("fewshot_config")
        sampler = examples.get("sampler") if isinstance(examples, dict) else None
        combinations.add((*short_names, sampler if isinstance(sampler, str) else None))
    assert len(combinations) >= 10
    return combinations


def few_shot_tasks(combinations: set[Combination]) -> Iterator[Callable[[], ConfigurableTask]]:
    """A maker of tasks with four examples for each combination and for each split to test on."""
    for *split_names, sampler in sorted(combinations, key=str):
        keys = dict(zip(SPLIT_KEYS, split_names, strict=True))
        names = sorted({name for name in split_names if name})
        splits = {name: random_documents(8, seed) for seed, name in enumerate(names)}
        # Splits of published data share documents, sometimes under another index.
        first_document = splits[names[0]][0]
        for documents in splits.values():
            documents[3] = first_document | {"g": 2 - first_document["g"]}
        if sampler:
            keys["fewshot_config"] = {"sampler": sampler}
        for test_split in [keys["test_split"], *names]:
            if test_split or keys["validation_split"]:
                options = keys | {"test_split": test_split}
                yield lambda splits=splits, options=options: make_task(
                    splits, num_fewshot=4, **options
                )


@pytest.mark.parametrize(
    "list_combinations",
    [
        lambda: COMMON_COMBINATIONS,
        pytest.param(combinations_of_lm_eval, marks=pytest.mark.slow),
    ],
    ids=["common", "of lm-eval"],
)
def test_no_question_is_among_its_own_examples(
    list_combinations: Callable[[], set[Combination]],
) -> None:
    """Whichever split is tested and examples are drawn from; else they are those of lm-eval."""
    encoder = open_encoder(tiny.model(depth=1), tiny.tokenizer())
    n_tasks = 0
    n_leaks = 0
    for new_task in few_shot_tasks(list_combinations()):
        task = new_task()
        prompts.build_requests(task, encoder, Style())
        n_tasks += 1
        for instance in task.instances:
            prompt = instance.args[0]
            assert prompt.count(instance.doc["q"]) == 1
            assert prompt.count("\n\n") == 4

        lm_eval_task = new_task()
        lm_eval_task.set_fewshot_seed(FEWSHOT_SEED)
        lm_eval_task.build_all_requests()
        for request, expected in zip(requests(task), requests(lm_eval_task), strict=True):
            document_index, expected_prompt, _ = expected
            question = task.eval_docs[document_index]["q"]
            is_leak = expected_prompt.count(question) > 1
            n_leaks += is_leak
            assert is_leak or request == expected
    assert n_tasks > 10
    assert n_leaks > 0


def test_a_seed_draws_the_examples_that_lm_eval_draws_by_it() -> None:
    splits = {"train": random_documents(40, 1), "test": random_documents(3, 2)}
    options = {"training_split": "train", "test_split": "test", "num_fewshot": 4}
    encoder = open_encoder(tiny.model(depth=1), tiny.tokenizer())
    prompts_by_seed = {}
    for seed in (FEWSHOT_SEED, 7):
        task = make_task(splits, **options)
        prompts.seed_examples(task, seed)
        prompts.build_requests(task, encoder, Style())
        lm_eval_task = make_task(splits, **options)
        lm_eval_task.set_fewshot_seed(seed)
        lm_eval_task.build_all_requests()
        assert requests(task) == requests(lm_eval_task)
        prompts_by_seed[seed] = requests(task)
    assert prompts_by_seed[7] != prompts_by_seed[FEWSHOT_SEED]


def test_another_seed_reorders_examples_that_are_always_the_first() -> None:
    splits = {"train": random_documents(4, 1), "test": random_documents(3, 2)}
    options = {
        "training_split": "train",
        "test_split": "test",
        "num_fewshot": 4,
        "fewshot_config": {"sampler": "first_n"},
    }
    encoder = open_encoder(tiny.model(depth=1), tiny.tokenizer())
    examples_by_seed = {}
    for seed in (FEWSHOT_SEED, 7, 8):
        task = make_task(splits, **options)
        prompts.seed_examples(task, seed)
        prompts.build_requests(task, encoder, Style())
        examples_by_seed[seed] = task.instances[0].args[0].split("\n\n")[:4]
    in_file = examples_by_seed[FEWSHOT_SEED]
    assert [
        example.count(document["q"])
        for example, document in zip(in_file, splits["train"], strict=True)
    ] == [1, 1, 1, 1]
    assert examples_by_seed[7] != in_file
    assert sorted(examples_by_seed[7]) == sorted(in_file) == sorted(examples_by_seed[8])


def test_too_few_examples_are_refused() -> None:
    splits = {"train": random_documents(5, 1)}
    task = make_task(splits, training_split="train", test_split="train")
    with pytest.raises(LaminaError, match="too few documents for 5 examples.*smaller num_fewshot"):
        prompts.build_requests(task, open_encoder(tiny.model(depth=1), tiny.tokenizer()), Style())


@pytest.mark.parametrize("gold", [-1, 3])
def test_an_example_with_an_impossible_answer_is_refused(gold: int) -> None:
    train = [document | {"g": gold} for document in random_documents(8, 1)]
    splits = {"train": train, "test": random_documents(3, 2)}
    task = make_task(splits, training_split="train", test_split="test")
    message = f"few-shot example .* has the answer {gold}, which is not one of its choices"
    with pytest.raises(LaminaError, match=message):
        prompts.build_requests(task, open_encoder(tiny.model(depth=1), tiny.tokenizer()), Style())


# What `simple_evaluate` takes. A new one is decided on here and in `lamina.data.prompts`: does it
# change a prompt?
KNOWN_OPTIONS = """
    model model_args tasks num_fewshot batch_size max_batch_size device use_cache cache_requests
    rewrite_requests_cache delete_requests_cache limit samples bootstrap_iters check_integrity
    write_out log_samples evaluation_tracker system_instruction apply_chat_template
    fewshot_as_multiturn gen_kwargs task_manager verbosity predict_only random_seed
    numpy_random_seed torch_random_seed fewshot_random_seed confirm_run_unsafe_code metadata
"""


def default_options(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def test_every_default_of_lm_eval_that_decides_a_prompt_is_known() -> None:
    defaults = default_options(simple_evaluate)
    assert sorted(defaults) == sorted(KNOWN_OPTIONS.split())
    assert defaults["num_fewshot"] is None
    assert defaults["system_instruction"] is None
    assert defaults["apply_chat_template"] is False
    assert defaults["fewshot_as_multiturn"] is True
    assert defaults["gen_kwargs"] is None
    assert defaults["fewshot_random_seed"] == FEWSHOT_SEED

    model_defaults = default_options(HFLM.__init__)
    assert model_defaults["chat_template_args"] is None
    assert model_defaults["enable_thinking"] is None
    assert model_defaults["add_bos_token"] is None
    assert model_defaults["prefix_token_id"] is None
    assert model_defaults["truncation"] is False
    assert model_defaults["max_length"] is None

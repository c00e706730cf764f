"""Prompts are those of lm-eval's command line, but for examples that hold the question itself."""

import inspect
import random
from collections.abc import Callable
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
from tests.given import tiny
from tests.given.tasks import evaluate_with_lm_eval, make_task

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} w0 {{ m['content'] }} w50 {% endfor %}"
    "{% if thinking is defined %}{{ thinking }} {% endif %}{% if add_generation_prompt %}assistant w0 {% endif %}"
)


def documents(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    found = []
    for number in range(count):
        asked = f"q{seed} {number} " + " ".join(draw.choices(tiny.WORDS, k=3))
        pairs = zip(draw.sample(tiny.WORDS, 3), draw.sample(tiny.WORDS, 3), strict=True)
        found.append({"q": asked, "c": [f"{a} {b}" for a, b in pairs], "g": draw.randrange(3)})
    return found


def requests(task: ConfigurableTask) -> list[tuple[Any, ...]]:
    return [(instance.doc_id, *instance.args) for instance in task.instances]


@pytest.mark.parametrize("kind", ["multiple_choice", "generate_until"])
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
def test_requests_and_numbers_are_those_of_simple_evaluate(style: Style, kind: str) -> None:
    splits = {"train": documents(30, 1), "test": documents(12, 2)}
    keys = {"training_split": "train", "test_split": "test", "description": "w5 w5"}
    model, tokenizer = tiny.model(), tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    options: dict[str, Any] = {"apply_chat_template": True} if style.chat_template else {}
    options |= {} if style.turns else {"fewshot_as_multiturn": False}
    theirs = make_task(splits, kind, **keys)
    plain = HFLM(pretrained=model, tokenizer=tokenizer, chat_template_args=dict(style.arguments))
    found = evaluate_with_lm_eval(
        plain, theirs, num_fewshot=5, system_instruction=style.system, **options
    )
    benchmark = TaskBenchmark(make_task(splits, kind, **keys), model, tokenizer, style=style)
    ours = benchmark.score(model, "base")
    assert requests(benchmark.task) == requests(theirs) and len(requests(theirs)) == 12 * (
        3 if "choice" in kind else 1
    )
    for row in ours.metrics:
        assert row["value"] == pytest.approx(found["results"]["made"][f"{row['metric']},none"])
    lm, calibrated = open_encoder(model, tokenizer), make_task(splits, kind, **keys)
    lm_tasks.task_samples(calibrated, lm, None, 0, style)
    assert requests(calibrated) == requests(theirs)


ROLES = ("training_split", "validation_split", "test_split", "fewshot_split", "sampler")
# Splits by role; their names matter only where they are equal.
SOME: set[tuple[str | None, ...]] = {
    ("s0", "s1", "s2", None, None),
    ("s0", None, "s0", None, "first_n"),
    ("s0", "s1", None, "s0", None),
    (None, "s1", "s2", "s1", None),
    (None, None, "s2", "s2", "first_n"),
    (None, None, "s2", None, None),
}


def of_lm_eval() -> set[tuple[str | None, ...]]:
    """The splits that lm-eval's own tasks name, each combination once."""
    found = set()
    for entry in TaskManager().task_index.values():
        keys = entry.cfg or {}
        shots = keys.get("fewshot_config")
        sampler = shots.get("sampler") if isinstance(shots, dict) else None
        named = [keys.get(role) for role in ROLES[:4]]
        if any(named[:3]) and all(name is None or isinstance(name, str) for name in named):
            places = [None if name is None else f"s{named.index(name)}" for name in named]
            found.add((*places, sampler if isinstance(sampler, str) else None))
    assert len(found) >= 10
    return found


@pytest.mark.parametrize(
    "combinations", [lambda: SOME, pytest.param(of_lm_eval, marks=pytest.mark.slow)]
)
def test_no_question_is_among_its_own_examples(
    combinations: Callable[[], set[tuple[str | None, ...]]],
) -> None:
    """On combinations of splits, such as the ten thousand tasks of lm-eval have, on every split that is asked for."""
    tried, leaks = 0, 0
    lm = open_encoder(tiny.model(depth=1), tiny.tokenizer())
    for each in sorted(combinations(), key=str):
        keys = dict(zip(ROLES, each, strict=True))
        sampler = keys.pop("sampler")
        names = sorted({name for name in keys.values() if name})
        splits = {name: documents(8, seed) for seed, name in enumerate(names)}
        # Splits of published data share documents, sometimes under another number.
        for documents_of in splits.values():
            documents_of[3] = splits[names[0]][0] | {"g": 2 - splits[names[0]][0]["g"]}
        shots = {"fewshot_config": {"sampler": sampler}} if sampler else {}
        for split in [None, *names]:
            roles = keys | ({"test_split": split} if split else {})
            if not (roles["test_split"] or roles["validation_split"]):
                continue
            task = make_task(splits, num_fewshot=4, **roles, **shots)
            prompts.build_requests(task, lm, Style())
            tried += 1
            for instance in task.instances[::3]:
                assert instance.args[0].count(instance.doc["q"]) == 1, roles
                assert instance.args[0].count("\n\n") == 4
            theirs = make_task(splits, num_fewshot=4, **roles, **shots)
            theirs.set_fewshot_seed(prompts.FEWSHOT_SEED)
            theirs.build_all_requests()
            for one, other in zip(requests(task), requests(theirs), strict=True):
                own = other[1].count(task.eval_docs[other[0]]["q"]) > 1
                leaks += own
                assert own or one == other  # what lm-eval draws stays as it is
    assert tried > 10 and leaks > 0


def test_too_few_examples_are_refused() -> None:
    task = make_task({"train": documents(5, 1)}, training_split="train", test_split="train")
    with pytest.raises(LaminaError, match="too few documents for 5 examples.*smaller num_fewshot"):
        prompts.build_requests(task, open_encoder(tiny.model(depth=1), tiny.tokenizer()), Style())


@pytest.mark.parametrize("gold", [-1, 3])
def test_an_example_with_an_impossible_answer_is_refused(gold: int) -> None:
    train = [document | {"g": gold} for document in documents(8, 1)]
    task = make_task(
        {"train": train, "test": documents(3, 2)}, training_split="train", test_split="test"
    )
    with pytest.raises(
        LaminaError,
        match=f"few-shot example .* has the answer {gold}, which is none of its choices",
    ):
        prompts.build_requests(task, open_encoder(tiny.model(depth=1), tiny.tokenizer()), Style())


def test_every_default_of_lm_eval_that_decides_a_prompt_is_known() -> None:
    """A new one, or another value, has to be decided on here and in the list of `lamina.data.prompts`."""
    defaults = {
        name: each.default for name, each in inspect.signature(simple_evaluate).parameters.items()
    }
    decided = (
        "num_fewshot",
        "system_instruction",
        "apply_chat_template",
        "fewshot_as_multiturn",
        "gen_kwargs",
    )
    assert [defaults[name] for name in decided] == [None, None, False, True, None]
    assert defaults["fewshot_random_seed"] == prompts.FEWSHOT_SEED
    of_model = inspect.signature(HFLM.__init__).parameters
    ours = {
        "chat_template_args": None,
        "enable_thinking": None,
        "add_bos_token": None,
        "prefix_token_id": None,
    }
    assert {name: of_model[name].default for name in ours} == ours
    assert of_model["truncation"].default is False and of_model["max_length"].default is None
    assert sorted(defaults) == sorted(KNOWN)


# What `simple_evaluate` takes: everything that is not in the list of `lamina.data.prompts` decides no prompt.
KNOWN = (
    "model model_args tasks num_fewshot batch_size max_batch_size device use_cache cache_requests "
    "rewrite_requests_cache delete_requests_cache limit samples bootstrap_iters check_integrity write_out log_samples "
    "evaluation_tracker system_instruction apply_chat_template fewshot_as_multiturn gen_kwargs task_manager verbosity "
    "predict_only random_seed numpy_random_seed torch_random_seed fewshot_random_seed confirm_run_unsafe_code metadata"
).split()

"""Tasks of lm-eval on documents that a test makes, and lm-eval as its own users run it."""

from typing import Any
from unittest import mock

from datasets import Dataset, DatasetDict
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lamina.data.prompts import seed_examples
from lamina.data.task_groups import DatasetTask
from lamina.options.calibrations import FEWSHOT_SEED
from tests.given import tiny

BOOTSTRAP_RESAMPLES = 1000  # lm-eval's own number takes seconds


def make_task(
    documents_by_split: dict[str, list[dict[str, Any]]],
    output_type: str = "multiple_choice",
    **changes: Any,
) -> DatasetTask:
    """A task on documents with a question `q`, choices `c` and the index `g` of the right choice.

    Its examples are drawn as `load_task` and lm-eval draw them.

    `changes` replace keys of the task's configuration.
    """
    task_config: dict[str, Any] = {
        "task": "made",
        "output_type": output_type,
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{c[g]}}",
        "num_fewshot": 5,
    }
    if output_type == "multiple_choice":
        task_config["doc_to_choice"] = "c"
        task_config["doc_to_target"] = "g"
    if output_type == "generate_until":
        task_config["generation_kwargs"] = {"until": ["w59"], "max_gen_toks": 4}

    splits = {name: Dataset.from_list(rows) for name, rows in documents_by_split.items()}
    task = DatasetTask(DatasetDict(splits), task_config | changes)
    seed_examples(task, FEWSHOT_SEED)
    return task


def evaluate_with_lm_eval(
    model: Any, task: Any, limit: int | None = None, **options: Any
) -> dict[str, Any]:
    """The results of lm-eval itself: one model, one question at a time.

    `model` is a model of transformers or lm-eval's HFLM of it.
    """
    language_model = model
    if not isinstance(model, HFLM):
        language_model = HFLM(pretrained=model, tokenizer=tiny.tokenizer(), batch_size=1)
    # The default index of ten thousand tasks takes seconds and has none of these.
    options.setdefault("task_manager", TaskManager(include_defaults=False))
    options.setdefault("bootstrap_iters", BOOTSTRAP_RESAMPLES)

    # For its records, lm-eval lists installed packages and asks git for the commit: seconds too.
    without_packages = mock.patch("lm_eval.evaluator.add_env_info")
    without_commit = mock.patch("lm_eval.evaluator.get_git_commit_hash")
    with without_packages, without_commit:
        results = simple_evaluate(model=language_model, tasks=[task], limit=limit, **options)
    assert results is not None
    return dict(results)

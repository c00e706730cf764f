"""Tasks of lm-eval on documents that are made here, and lm-eval as its own users run it."""

from typing import Any
from unittest import mock

from datasets import Dataset, DatasetDict
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lamina.data.task_groups import DatasetTask
from tests.given import tiny

BOOTSTRAP = 1000  # resamples, of which the stock ones take seconds


def made(
    splits: dict[str, list[dict[str, Any]]], kind: str = "multiple_choice", **keys: Any
) -> DatasetTask:
    """A task on questions `q` with choices `c`, the right one being number `g`, unless `keys` say otherwise."""
    choices = {"doc_to_choice": "c", "doc_to_target": "g"}
    config = {"task": "made", "output_type": kind, "doc_to_text": "{{q}}", "num_fewshot": 5}
    config |= choices if kind == "multiple_choice" else {"doc_to_target": "{{c[g]}}"}
    config |= (
        {"generation_kwargs": {"until": ["w59"], "max_gen_toks": 4}}
        if kind == "generate_until"
        else {}
    )
    return DatasetTask(
        DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()}), config | keys
    )


def stock(model: Any, task: Any, limit: int | None = None, **options: Any) -> dict[str, Any]:
    """lm-eval as its own users run it, one model, one question at a time; `model` may be its HFLM."""
    lm = (
        model
        if isinstance(model, HFLM)
        else HFLM(pretrained=model, tokenizer=tiny.tokenizer(), batch_size=1)
    )
    # Its index of ten thousand tasks takes seconds and holds none of these.
    options = {
        "task_manager": TaskManager(include_defaults=False),
        "bootstrap_iters": BOOTSTRAP,
    } | options
    # So do the installed packages and the last commit, which it lists for its records.
    with (
        mock.patch("lm_eval.evaluator.add_env_info"),
        mock.patch("lm_eval.evaluator.get_git_commit_hash"),
    ):
        found = simple_evaluate(model=lm, tasks=[task], limit=limit, **options)
    assert found is not None
    return dict(found)

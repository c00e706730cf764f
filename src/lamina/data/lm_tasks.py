"""lm-eval tasks: found by name or made from a choices file, and read as calibration samples.

Prompts and encodings are lm-eval's own, so that a sweep scores exactly what a benchmark would.
"""

import difflib
import json
import logging
import random
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from datasets.exceptions import DatasetNotFoundError
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina.data.calibrations import Row, Sample, document_hash
from lamina.errors import LaminaError

logging.getLogger("lm_eval").setLevel(logging.WARNING)

# The seed with which the stock lm_eval command draws few-shot examples.
FEWSHOT_SEED = 1234

# Task files of the project; a path added here is searched before lm-eval's own 10,000 tasks, whose index takes seconds.
LOCAL_TASKS = "workflow/tasks"


def task_object(
    name: str, root: Path, num_fewshot: int | None = None, choices: str | None = None, split: str | None = None
) -> ConfigurableTask:
    """An lm-eval task ready to build requests, evaluated on `split` (default: the task's own test split).

    `choices` is a .jsonl file with `query`, `choices` and `gold` and makes a task of that `name`.

    Raises
    ------
    LaminaError
        If no task has that name, its data cannot be had, or it lacks the split.
    """
    try:
        # Paths in task files count from the root, wherever this is called from.
        with chdir(root):
            if choices:
                task = ConfigurableTask(config=_choices_config(name, root / choices))
            else:
                task = _manager(name, root).load(name)["tasks"][name]
    except (DatasetNotFoundError, ConnectionError, OSError) as error:
        raise LaminaError(
            f"the data of task '{name}' cannot be loaded ({error}). Where there is no network, load them once where "
            "there is one, or write a task on local files."
        ) from error
    task.set_fewshot_seed(FEWSHOT_SEED)
    if num_fewshot is not None:
        task.set_config("num_fewshot", num_fewshot)
    if split is not None:
        _use_split(task, name, split)
    elif not (task.has_test_docs() or task.has_validation_docs()):
        raise LaminaError(f"task '{name}' has no test split to benchmark on; its splits are {sorted(task.dataset)}.")
    return task


def _manager(name: str, root: Path) -> TaskManager:
    """An index that holds task `name`; lm-eval's own tasks are indexed only if the project's do not have it."""
    local = str(root / LOCAL_TASKS)
    manager = TaskManager(include_path=local, include_defaults=False)
    if name not in manager.task_index:
        manager = TaskManager(include_path=local)
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f"The nearest are: {', '.join(near)}." if near else "`lm_eval ls tasks` lists all."
        raise LaminaError(f"there is no lm-eval task '{name}'. {hint}")
    if name not in manager.all_subtasks:
        raise LaminaError(f"'{name}' is a group of lm-eval tasks. Name its tasks one by one.")
    return manager


def _choices_config(name: str, path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise LaminaError(f"choices: there is no file {path}. Write the path of a .jsonl file.")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            fits = isinstance(record["query"], str) and 0 <= record["gold"] < len(record["choices"])
        except (json.JSONDecodeError, KeyError, TypeError):
            fits = False
        if not fits:
            raise LaminaError(
                f"{path}, line {number}: not a question. Write one JSON object a line: "
                '{"query": "…", "choices": ["…", "…"], "gold": 0}, gold counting from 0.'
            )
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def _use_split(task: ConfigurableTask, name: str, split: str) -> None:
    """Evaluate on `split`, called by its name in the task (train, validation, test) or in the data."""
    roles = {
        "train": task.config.training_split,
        "validation": task.config.validation_split,
        "test": task.config.test_split,
    }
    found = roles.get(split) or split
    if found not in task.dataset:
        there = sorted(role for role, value in roles.items() if value in task.dataset)
        raise LaminaError(
            f"task '{name}' has no split '{split}'. It has {', '.join(there) or 'none'}: write `split: "
            f"{there[0] if there else '…'}`, or use another task to calibrate on."
        )
    task.set_config("test_split", found)


def recorder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> HFLM:
    """An lm-eval model used for its encodings only; `model` may be a skeleton without weights."""
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


def document_text(task: ConfigurableTask, doc: dict[str, Any]) -> tuple[str, list[str]]:
    """Question and choices of one document, without few-shot examples."""
    if task.config.output_type != "multiple_choice":
        return str(task.doc_to_text(doc)), [str(task.doc_to_target(doc))]
    if task.multiple_input:
        return str(task.doc_to_target(doc)), [str(c) for c in task.doc_to_choice(doc)]
    return str(task.doc_to_text(doc)), [str(c) for c in task.doc_to_choice(doc)]


def test_documents(task: ConfigurableTask, limit: int | None = None) -> list[str]:
    """Hashes of the documents that a benchmark of `task` scores."""
    docs = list(task.eval_docs)[:limit]
    return [document_hash(*document_text(task, doc)) for doc in docs]


def task_samples(
    task: ConfigurableTask, lm: HFLM, limit: int | None, seed: int, chat_template: bool = False
) -> list[Sample]:
    """Samples of the task's chosen split: all of them, or `limit` drawn with `seed`.

    Raises
    ------
    LaminaError
        If the task's answers are neither one right choice nor a generated text.
    """
    total = len(task.eval_docs)
    chosen = sorted(random.Random(seed).sample(range(total), limit)) if limit and limit < total else list(range(total))
    template = {"apply_chat_template": True, "chat_template": lm.apply_chat_template} if chat_template else {}
    task.build_all_requests(samples=chosen, tokenizer_name=lm.tokenizer_name if chat_template else "", **template)
    by_document: dict[int, list[Any]] = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    samples: list[Sample] = []
    for instances in by_document.values():
        doc = instances[0].doc
        text, choices = document_text(task, doc)
        document = document_hash(text, choices)
        if task.config.output_type == "multiple_choice":
            rows, gold = _choice_rows(task, lm, doc, instances), _gold(task, doc)
            samples.append(Sample(len(samples), "choices", gold, rows, document))
        elif task.config.output_type in ("generate_until", "loglikelihood"):
            samples.append(Sample(len(samples), "generated", 0, (_answer_row(task, lm, doc, instances[0]),), document))
        else:
            raise LaminaError(
                f"task '{task.config.task}' scores by {task.config.output_type}, which has no right answer to count. "
                "Calibrate on it as text: `text: file`."
            )
    return samples


def _gold(task: ConfigurableTask, doc: dict[str, Any]) -> int:
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(gold, str):
        gold = task.doc_to_choice(doc).index(gold)
    if not isinstance(gold, int):
        raise LaminaError(
            f"task '{task.config.task}' has several right choices per document; use one with a single one."
        )
    return gold


def _choice_rows(task: ConfigurableTask, lm: HFLM, doc: dict[str, Any], instances: Sequence[Any]) -> tuple[Row, ...]:
    choices = task.doc_to_choice(doc)
    # Tasks with mutual information ask for unconditional scores too; those follow the choices and are not needed here.
    pairs = zip(instances, choices, strict=False)
    return tuple(_row(lm, instance.args[0], instance.args[1], len(choice)) for instance, choice in pairs)


def _answer_row(task: ConfigurableTask, lm: HFLM, doc: dict[str, Any], instance: Any) -> Row:
    """Context, gold answer and the stop after it, for teacher forcing."""
    target = str(task.doc_to_target(doc))
    context = instance.args[0]
    if task.config.output_type == "loglikelihood":
        return _row(lm, context, instance.args[1], len(target))
    delimiter = task.config.target_delimiter
    until = (task.config.generation_kwargs or {}).get("until") or []
    row = _row(lm, context, delimiter + target, len(target))
    stopped = _row(lm, context, delimiter + target + until[0], len(target)) if until else row
    if stopped.continuation[: len(row.continuation)] == row.continuation and len(stopped.continuation) > len(
        row.continuation
    ):
        return Row(row.context, stopped.continuation[: len(row.continuation) + 1], row.characters)
    # The tokenizer drops the stop string (a newline, say): the model then stops by its end-of-text token.
    return Row(row.context, (*row.continuation, lm.eot_token_id), row.characters)


def _row(lm: HFLM, context: str, continuation: str, characters: int) -> Row:
    """Encode as `HFLM.loglikelihood` does, the context cut from the left to the model's length."""
    if context == "":
        tokens = lm.tok_encode(continuation, add_special_tokens=False)
        prefix = lm.prefix_token_id
        before, after = ([prefix], tokens) if tokens[0] != prefix else (tokens[:1], tokens[1:])
    else:
        before, after = lm._encode_pair(context, continuation)
    kept = (before + after)[-(lm.max_length + 1) :]
    if len(after) >= len(kept):
        raise LaminaError(f"an answer has {len(after)} tokens, more than the model's context of {lm.max_length}.")
    return Row(tuple(kept[: -len(after)]), tuple(after), characters)

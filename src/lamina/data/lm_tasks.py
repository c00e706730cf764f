"""lm-eval tasks: looked up by name or made from a choices file, and read as calibration samples.

Prompts and encodings are lm-eval's own, so that a sweep scores exactly what a benchmark would.
"""

import difflib
import logging
import random
from collections.abc import Sequence
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from httpx2 import HTTPError
from jinja2 import TemplateError
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask

from lamina.data import answers, prompts, task_files, task_groups
from lamina.data.answers import document_text
from lamina.data.calibrations import Row, Sample
from lamina.data.documents import UNKNOWN_DATASET
from lamina.data.encoding import EncodingLM, encode_pair, fit_row, scored_row
from lamina.data.files import check_examples, read_questions
from lamina.data.overlap import document_hash, runs
from lamina.data.prompts import PLAIN, Style
from lamina.data.task_groups import TaskOrGroup, list_tasks
from lamina.errors import LaminaError

logging.getLogger("lm_eval").setLevel(logging.WARNING)


def task_object(name: str, *args: Any, **options: Any) -> ConfigurableTask:
    """As `load_task`, for callers that need a single task.

    Raises LaminaError also if it is a group.
    """
    task = load_task(name, *args, **options)
    if isinstance(task, Group):
        raise LaminaError(
            f"'{name}' is a group of lm-eval tasks. {task_groups.advise_single_tasks(task)}."
        )
    return task


def load_task(
    name: str,
    root: Path,
    num_fewshot: int | None = None,
    choices: str | None = None,
    split: str | None = None,
    trust_code: bool = False,
) -> TaskOrGroup:
    """An lm-eval task or group ready to build requests, evaluated on `split` (default: each task's own test split).

    `choices` is a .jsonl file with `query`, `choices` and `gold` and makes a task of that `name`. With `trust_code`,
    Python that the task files of the project name may run.

    Raises LaminaError if no task has that name, it names Python that is not trusted, its data cannot be loaded, or it
    lacks the split.
    """
    try:
        # Paths in task files count from the root, whatever the current folder is.
        with (
            chdir(root),
            task_groups.empty_cache(task_groups.MODULE_CACHE) if trust_code else nullcontext(),
        ):
            loaded: TaskOrGroup
            if choices:
                loaded = task = _questions(name, root / choices)
                check_examples(num_fewshot, len(task.eval_docs), f"{name}.num_fewshot", choices)
            else:
                # This searches the project first, since the index of lm-eval's own 10,000 tasks takes seconds.
                loaded = task_groups.find_task(name, task_files.folder(root), trust_code)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # lm-eval tries the first document when it makes a task.
        raise LaminaError(
            f"task '{name}' cannot be made: its first test document does not fit its task file ({error!r}), for "
            "example because its right answer is none of its choices, or the data has no such split or column. Correct "
            "the document, or the splits, doc_to_text, doc_to_choice and doc_to_target."
        ) from error
    except TemplateError as error:
        raise LaminaError(
            f"a template of task '{name}' does not fit its documents: {error} Correct doc_to_text, doc_to_choice or "
            "doc_to_target in its task file."
        ) from error
    except DatasetNotFoundError as error:
        raise LaminaError(
            f"the data of task '{name}' cannot be loaded ({error}). {UNKNOWN_DATASET}"
        ) from error
    except (DatasetsError, HTTPError, OSError) as error:
        raise LaminaError(
            f"the data of task '{name}' cannot be loaded ({error.__cause__ or error}). Where there is no network, load "
            "them once where there is one, or write a task on local files."
        ) from error
    for leaf in list_tasks(loaded):
        if num_fewshot is not None:
            leaf.set_config("num_fewshot", num_fewshot)
        if split is not None:
            _use_split(leaf, split)
        elif not (leaf.has_test_docs() or leaf.has_validation_docs()):
            raise LaminaError(
                f"task '{leaf.config.task}' has no test split to benchmark on; its splits are {sorted(leaf.dataset)}."
            )
    return loaded


def _questions(name: str, path: Path) -> ConfigurableTask:
    """A task on a file of questions that lamina has read and checked itself; other keys of its lines do not matter."""
    config = {
        "task": name,
        "test_split": "test",
        "fewshot_split": "test",  # named, so that no question is among its own examples
        "output_type": "multiple_choice",
        # Columns: with templates, lm-eval would take a question such as "12" for the number of a choice.
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    return task_groups.DatasetTask(
        DatasetDict(test=Dataset.from_list(read_questions(path))), config
    )


def _use_split(task: ConfigurableTask, split: str) -> None:
    """Evaluate on `split`, called by its name in the task (train, validation, test) or in the data."""
    name = task.config.task
    roles = {"train": task.config.training_split, "validation": task.config.validation_split}
    chosen = (roles | {"test": task.config.test_split}).get(split) or split
    if chosen not in task.dataset:
        # Nothing is ever calibrated on the test split.
        usable = [role for role, value in roles.items() if value in task.dataset]
        nearest = difflib.get_close_matches(split, usable, 1, 0)
        has = (
            f"It has {', '.join(usable)}: write `split: {nearest[0]}`, or use" if nearest else "Use"
        )
        raise LaminaError(
            f"task '{name}' has no split '{split}'. {has} another task to calibrate on."
        )
    scored = eval_split(task)
    if task.config.num_fewshot and task.fewshot_cfg.split == scored != chosen:
        raise LaminaError(
            f"task '{name}' takes its examples from '{scored}', the split that benchmarks score, and nothing is "
            "calibrated on test data. Write `num_fewshot: 0` in the calibration, or another "
            "fewshot_split in a task file of yours."
        )
    task.set_config("test_split", chosen)


def is_own(name: str, root: Path) -> bool:
    """Whether a task stands in the task files of the project, so that its user can correct its data."""
    return bool(task_files.reached(name, task_files.folder(root)))


def test_documents(
    found: TaskOrGroup, limit: int | None = None, own: bool = True
) -> list[tuple[str, list[str]]]:
    """Question and choices of the documents that a benchmark of a task or group scores, `limit` of each task.

    Raises LaminaError if one of them has no answer that could be right (`lamina.data.answers.check_documents`).
    """
    documents = []
    for task in list_tasks(found):
        docs = list(task.eval_docs)[:limit]
        answers.check_documents(
            task, f"its {eval_split(task)} split", own, range(len(docs)), is_scored=True
        )
        documents += [document_text(task, doc) for doc in docs]
    return documents


def eval_split(task: ConfigurableTask) -> str:
    """The name of the split that a task is evaluated on."""
    return str(task.config.test_split or task.config.validation_split)


def task_samples(
    task: ConfigurableTask,
    lm: EncodingLM,
    limit: int | None,
    seed: int,
    style: Style = PLAIN,
    own: bool = True,
) -> list[Sample]:
    """Samples of the task's chosen split: all of them, or `limit` drawn with `seed`.

    `own` is whether the task file is the user's (`answers.check_documents`). A written answer has a row for each of
    the right ones.

    Raises LaminaError if the task's answers are neither choices nor a text, or a document has no right one.
    """
    if task.config.output_type == "loglikelihood_rolling":
        raise LaminaError(
            f"task '{task.config.task}' scores by {task.config.output_type}, which has no right answer to count. "
            "Calibrate on it as text: `text: file`."
        )
    total = len(task.eval_docs)
    chosen = sorted(random.Random(seed).sample(range(total), min(limit or total, total)))
    answers.check_documents(task, f"its {eval_split(task)} split", own, chosen, is_scored=False)
    prompts.build_requests(task, lm, style, samples=chosen)
    by_document: dict[int, list[Any]] = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    samples: list[Sample] = []
    for instances in by_document.values():
        doc = instances[0].doc
        asked = document_text(task, doc)
        if task.config.output_type == "multiple_choice":
            kind, (gold, *also) = "choices", answers.right_choices(task, doc)
            # Tasks with mutual information ask for unconditional scores too; those follow the choices.
            pairs = zip(instances, task.doc_to_choice(doc), strict=False)
            rows = tuple(
                scored_row(lm, instance.args[0], instance.args[1], len(choice))
                for instance, choice in pairs
            )
        else:
            kind, gold, texts = "generated", 0, answers.right_texts(task, doc)
            rows = tuple(_answer_row(task, lm, text, instances[0], style) for text in texts)
            also = list(range(1, len(rows)))
        source = (document_hash(*asked), runs(*asked), tuple(also), lm.max_length)
        samples.append(Sample(len(samples), kind, gold, rows, *source))
    return samples


def undecided_documents(task: ConfigurableTask, samples: Sequence[Sample]) -> list[str]:
    """Those of the documents behind `samples`, made by `task_samples`, that no score decides; each with two choices."""
    docs = {instance.doc_id: instance.doc for instance in task.instances}
    undecided = []
    for sample, doc in zip(samples, docs.values(), strict=True):
        if sample.is_undecided:
            rows = [(row.context, row.continuation) for row in sample.rows]
            undecided.append(answers.undecided_document(task, doc, rows) or sample.document)
    return undecided


def _answer_row(
    task: ConfigurableTask, lm: EncodingLM, target: str, instance: Any, style: Style
) -> Row:
    """Context, right answer and the stop after it, for teacher forcing."""
    context = instance.args[0]
    if task.config.output_type == "loglikelihood":
        return scored_row(lm, context, instance.args[1], len(target))
    answer = prompts.answer_delimiter(task, style) + target
    until = (task.config.generation_kwargs or {}).get("until") or []
    texts, before, after = encode_pair(lm, context, answer)
    stopped = encode_pair(lm, context, answer + until[0])[2] if until else after
    if stopped[: len(after)] == after and len(stopped) > len(after):
        after = stopped[: len(after) + 1]
    else:
        # The tokenizer drops the stop string (a newline, for example), so the model stops by its end-of-text token.
        after = [*after, lm.eot_token_id]
    return fit_row(lm, (texts, before, after), len(target))

"""Finds lm-eval tasks by name, or makes them from a file of questions, and reads their samples.

Prompts and encodings are lm-eval's own, so that a sweep scores exactly what a benchmark would.
"""

import difflib
import logging
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from httpx2 import HTTPError
from jinja2 import TemplateError
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from lamina.data import answers, prompts, task_files, task_groups
from lamina.data.answers import document_text
from lamina.data.calibrations import Row, Sample
from lamina.data.documents import UNKNOWN_DATASET
from lamina.data.encoding import EncodingLM, encode_pair, fit_row, scored_row
from lamina.data.files import check_examples, read_questions
from lamina.data.overlap import document_hash, hash_word_runs
from lamina.data.prompts import PLAIN, Style
from lamina.data.task_groups import TaskOrGroup, list_tasks
from lamina.errors import LaminaError
from lamina.options.calibrations import FEWSHOT_SEED

logging.getLogger("lm_eval").setLevel(logging.WARNING)


def task_object(name: str, *args: Any, **options: Any) -> ConfigurableTask:
    """As `load_task`, for callers that need a single task.

    Raises LaminaError also if it is a group.
    """
    task = load_task(name, *args, **options)
    if isinstance(task, Group):
        advice = task_groups.advise_single_tasks(task)
        raise LaminaError(f"'{name}' is a group of lm-eval tasks. {advice}.")
    return task


def load_task(
    name: str,
    root: Path,
    num_fewshot: int | None = None,
    choices: str | None = None,
    split: str | None = None,
    trust_code: bool = False,
    fewshot_seed: int = FEWSHOT_SEED,
) -> TaskOrGroup:
    """Load an lm-eval task or group that is ready to build requests.

    choices: A .jsonl file with `query`, `choices` and `gold`, from which a task of that `name` is
        made.
    split: What the task is evaluated on, by default its own test split.
    trust_code: Whether Python that the task files of the project name may run.
    fewshot_seed: See `prompts.seed_examples`.

    Raises LaminaError if no task has that name, it names Python that is not trusted, its data
    cannot be loaded, or it lacks the split.
    """
    loaded = _load(name, root, num_fewshot, choices, trust_code)
    for task in list_tasks(loaded):
        if num_fewshot is not None:
            task.set_config("num_fewshot", num_fewshot)
        prompts.seed_examples(task, fewshot_seed)
        if split is not None:
            _use_split(task, split)
        elif not (task.has_test_docs() or task.has_validation_docs()):
            raise LaminaError(
                f"task '{task.config.task}' has no test split to benchmark on; its splits are "
                f"{sorted(task.dataset)}."
            )
    return loaded


def _load(
    name: str, root: Path, num_fewshot: int | None, choices: str | None, trust_code: bool
) -> TaskOrGroup:
    """A task or group as its files define it, with messages for what makes lm-eval stop."""
    fresh_modules: AbstractContextManager[None] = nullcontext()
    if trust_code:
        fresh_modules = task_groups.empty_cache(task_groups.MODULE_CACHE)
    try:
        # Paths in task files are relative to the root, whatever the current folder is.
        with chdir(root), fresh_modules:
            if not choices:
                return task_groups.find_task(name, task_files.find_task_folder(root), trust_code)
            task = _make_question_task(name, root / choices)
            check_examples(num_fewshot, len(task.eval_docs), f"{name}.num_fewshot", choices)
            return task
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # lm-eval tries the first document when it makes a task.
        raise LaminaError(
            f"task '{name}' cannot be made: its first test document does not fit its task file "
            f"({error!r}), for example because its right answer is not one of its choices, or the "
            "data has no such split or column. Correct the document, or the splits, doc_to_text, "
            "doc_to_choice and doc_to_target."
        ) from error
    except TemplateError as error:
        raise LaminaError(
            f"a template of task '{name}' does not fit its documents: {error} Correct doc_to_text, "
            "doc_to_choice or doc_to_target in its task file."
        ) from error
    except DatasetNotFoundError as error:
        raise LaminaError(
            f"the data of task '{name}' cannot be loaded ({error}). {UNKNOWN_DATASET}"
        ) from error
    except (DatasetsError, HTTPError, OSError) as error:
        raise LaminaError(
            f"the data of task '{name}' cannot be loaded ({error.__cause__ or error}). Without "
            "network access, load it once where there is a network, or write a task on local files."
        ) from error


def _make_question_task(name: str, path: Path) -> ConfigurableTask:
    """A task on a file of questions, which lamina itself reads and checks.

    Other keys of its lines do not matter.
    """
    config = {
        "task": name,
        "test_split": "test",
        "fewshot_split": "test",  # named, so that no question becomes its own example
        "output_type": "multiple_choice",
        # Columns, not templates: with templates, lm-eval would take a question such as "12" for an
        # index.
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "num_fewshot": 0,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("acc", "acc_norm")
        ],
    }
    dataset = DatasetDict(test=Dataset.from_list(read_questions(path)))
    return task_groups.DatasetTask(dataset, config)


def _use_split(task: ConfigurableTask, split: str) -> None:
    """Evaluate a task on `split`.

    split: Its name in the task (train, validation, test) or in the data.
    """
    name = task.config.task
    calibration_roles = {
        "train": task.config.training_split,
        "validation": task.config.validation_split,
    }
    roles = calibration_roles | {"test": task.config.test_split}
    chosen_split = roles.get(split) or split
    if chosen_split not in task.dataset:
        # Nothing is ever calibrated on the test split, so it is not proposed.
        usable = [role for role, value in calibration_roles.items() if value in task.dataset]
        nearest = difflib.get_close_matches(split, usable, n=1, cutoff=0)
        advice = "Use"
        if nearest:
            advice = f"It has {', '.join(usable)}: write `split: {nearest[0]}`, or use"
        raise LaminaError(
            f"task '{name}' has no split '{split}'. {advice} another task to calibrate on."
        )

    scored_split = eval_split(task)
    has_scored_examples = task.config.num_fewshot and task.fewshot_cfg.split == scored_split
    if has_scored_examples and scored_split != chosen_split:
        raise LaminaError(
            f"task '{name}' takes its examples from '{scored_split}', the split that benchmarks "
            "score, and test data must not be used for calibration. Write `num_fewshot: 0` in the "
            "calibration, or another fewshot_split in a task file of your own."
        )
    task.set_config("test_split", chosen_split)


def is_own(name: str, root: Path) -> bool:
    """Whether a task comes from the project's task files, so that the user can correct its data."""
    return bool(task_files.list_reached_files(name, task_files.find_task_folder(root)))


def eval_split(task: ConfigurableTask) -> str:
    """The name of the split that a task is evaluated on."""
    return str(task.config.test_split or task.config.validation_split)


def test_documents(
    task_or_group: TaskOrGroup, limit: int | None = None, own: bool = True
) -> list[tuple[str, list[str]]]:
    """Question and choices of the documents that a benchmark scores.

    limit: The first documents of each task; None takes all.
    own: Whether the task files are the user's (`lamina.data.answers.check_documents`).

    Raises LaminaError if one of them has no possible right answer.
    """
    documents: list[tuple[str, list[str]]] = []
    for task in list_tasks(task_or_group):
        docs = list(task.eval_docs)[:limit]
        split = f"its {eval_split(task)} split"
        answers.check_documents(task, split, own, range(len(docs)), is_scored=True)
        documents += [document_text(task, doc) for doc in docs]
    return documents


def task_samples(
    task: ConfigurableTask,
    lm: EncodingLM,
    limit: int | None,
    seed: int,
    style: Style = PLAIN,
    own: bool = True,
) -> list[Sample]:
    """Samples of the task's chosen split: all of them, or `limit` drawn with `seed`.

    own: Whether the task file is the user's (`lamina.data.answers.check_documents`).

    Raises LaminaError if the task's answers are neither choices nor a text, or a document has no
    right one.
    """
    if task.config.output_type == "loglikelihood_rolling":
        raise LaminaError(
            f"task '{task.config.task}' scores by {task.config.output_type}, which has no right "
            "answer to count. Calibrate on it as text: `text: file`."
        )
    n_documents = len(task.eval_docs)
    n_drawn = min(limit or n_documents, n_documents)
    drawn = sorted(random.Random(seed).sample(range(n_documents), n_drawn))
    split = f"its {eval_split(task)} split"
    answers.check_documents(task, split, own, drawn, is_scored=False)

    prompts.build_requests(task, lm, style, samples=drawn)
    requests_by_document: dict[int, list[Instance]] = {}
    for request in task.instances:
        requests_by_document.setdefault(request.doc_id, []).append(request)
    return [
        _make_sample(task, lm, index, requests, style)
        for index, requests in enumerate(requests_by_document.values())
    ]


def undecided_documents(task: ConfigurableTask, samples: Sequence[Sample]) -> list[str]:
    """Describe the documents of a task that no score decides, each with two of its choices.

    samples: The samples of the task from `task_samples`.
    """
    doc_by_id = {request.doc_id: request.doc for request in task.instances}
    undecided: list[str] = []
    for sample, doc in zip(samples, doc_by_id.values(), strict=True):
        if sample.is_undecided:
            rows = [(row.context, row.continuation) for row in sample.rows]
            description = answers.undecided_document(task, doc, rows)
            undecided.append(description or sample.document)
    return undecided


def _make_sample(
    task: ConfigurableTask,
    lm: EncodingLM,
    index: int,
    requests: Sequence[Instance],
    style: Style,
) -> Sample:
    """The sample of a document from its requests."""
    doc = requests[0].doc
    if task.config.output_type == "multiple_choice":
        kind = "choices"
        gold, *other_right = answers.right_choices(task, doc)
        rows = _choice_rows(task, lm, requests)
    else:
        kind = "generated"
        texts = answers.right_texts(task, doc)
        rows = [_answer_row(task, lm, text, requests[0], style) for text in texts]
        gold, *other_right = range(len(rows))
    question, choices = document_text(task, doc)
    return Sample(
        index,
        kind,
        gold,
        tuple(rows),
        document=document_hash(question, choices),
        runs=hash_word_runs(question, choices),
        also=tuple(other_right),
        limit=lm.max_length,
    )


def _choice_rows(task: ConfigurableTask, lm: EncodingLM, requests: Sequence[Instance]) -> list[Row]:
    """A row for each choice of a document."""
    rows: list[Row] = []
    choices = task.doc_to_choice(requests[0].doc)
    # Tasks with mutual information also request unconditional scores, which follow the choices.
    for request, choice in zip(requests, choices, strict=False):
        context, continuation = request.args
        rows.append(scored_row(lm, context, continuation, len(choice)))
    return rows


def _answer_row(
    task: ConfigurableTask, lm: EncodingLM, target: str, request: Instance, style: Style
) -> Row:
    """Context, right answer and the stop after it, for teacher forcing."""
    context = request.args[0]
    if task.config.output_type == "loglikelihood":
        return scored_row(lm, context, request.args[1], len(target))

    answer = prompts.answer_delimiter(task, style) + target
    texts, context_ids, answer_ids = encode_pair(lm, context, answer)
    stops = (task.config.generation_kwargs or {}).get("until") or []
    stop_ids: list[int] = []
    # With a chat template, a model ends its turn and writes no stop string.
    if stops and not style.chat_template:
        _, _, stopped_ids = encode_pair(lm, context, answer + stops[0])
        if stopped_ids[: len(answer_ids)] == answer_ids:
            stop_ids = stopped_ids[len(answer_ids) :][:1]
    if not stop_ids:
        # There is no stop string, or the tokenizer drops it (a newline, for example), so the model
        # stops with its end-of-text token.
        stop_ids = [lm.eot_token_id]
    return fit_row(lm, (texts, context_ids, [*answer_ids, *stop_ids]), len(target))

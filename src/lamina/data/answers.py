"""Finds the right answers of lm-eval's documents, and refuses documents without one.

lm-eval itself counts a document without a possible answer as wrong, or takes the last choice for
number -1.
"""

import ast
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lm_eval.api import metrics
from lm_eval.api.task import ConfigurableTask

from lamina.data.files import choices_fault, equal_choices_fault, shorten_value
from lamina.errors import LaminaError

# The metrics that lm-eval measures on choices.
_CHOICE_METRICS = {
    *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"),
    *("f1", "mcc", "brier_score", "likelihood"),
}

_logger = logging.getLogger(__name__)


class NoAnswer(Exception):
    """A document has no possible right answer; the message is a sentence that says why."""


class Fault(NamedTuple):
    """What is wrong with a document."""

    sentence: str
    has_answer: bool  # whether the document still has a right answer


def document_text(task: ConfigurableTask, doc: dict[str, Any]) -> tuple[str, list[str]]:
    """Question and choices of one document, without few-shot examples.

    If the answer is generated, it is the single choice.
    """
    if task.config.output_type != "multiple_choice":
        return str(task.doc_to_text(doc)), [str(task.doc_to_target(doc))]
    return _question(task, doc), [str(choice) for choice in task.doc_to_choice(doc)]


def document_start(task: ConfigurableTask, doc: dict[str, Any]) -> str:
    """The first words of a question, for messages."""
    try:
        question = _question(task, doc).strip()
    except (IndexError, KeyError, TypeError):
        question = str(doc)
    return question if len(question) <= 60 else f"{question[:57]}…"


def right_choices(task: ConfigurableTask, doc: dict[str, Any]) -> list[int]:
    """The indices of the right choices of a document, the main one first.

    Raises NoAnswer if there is none, or it is not the index of a choice.
    """
    choices = task.doc_to_choice(doc)
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise NoAnswer(f"its choices are {shorten_value(choices)}, not a list of texts.")
    return [_choice_index(gold, choices) for gold in _as_list(_gold(task, doc))]


def right_texts(task: ConfigurableTask, doc: dict[str, Any]) -> list[str]:
    """The right answers of a document whose answer is generated, the main one first.

    Raises NoAnswer if there is none, or it is not a text.
    """
    gold = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None:
        if isinstance(gold, list):
            raise NoAnswer("it has several right choices, but the model is to write only one.")
        choices = task.doc_to_choice(doc)
        gold = choices[_choice_index(gold, choices)]

    texts: list[str] = []
    for answer in _as_list(gold):
        if isinstance(gold, list) and not isinstance(answer, str):
            raise NoAnswer(f"its right answers are {shorten_value(gold)}, not a list of texts.")
        if isinstance(_undo_template(answer), dict) and not _is_json(answer):
            raise NoAnswer(
                f"its right answer is {shorten_value(answer)}, not a text. Name one of its fields."
            )
        if answer is None or not str(answer).strip():
            raise NoAnswer(f"its right answer is {shorten_value(answer)}, which is not a text.")
        texts.append(str(answer))
    return list(dict.fromkeys(texts))


def _is_json(answer: Any) -> bool:
    """Whether an answer is JSON text, which no template makes from a mapping in a document."""
    try:
        json.loads(answer)
    except (TypeError, ValueError):
        return False
    return True


def check_documents(
    task: ConfigurableTask,
    split: str,
    is_own: bool,
    document_indices: Iterable[int],
    is_scored: bool,
) -> None:
    """Refuse documents whose right answer lm-eval or lamina cannot count.

    split: What messages call the documents.
    is_own: Whether the task file is the user's. Choices that no score distinguishes are then
        refused, as in a file of questions. Published tasks have some; these are only counted in the
        log.
    is_scored: Whether lm-eval itself compares the answers. It assumes that all documents have as
        many right answers as the first.

    Raises LaminaError that names the task, the document and what is wrong.
    """
    if is_scored:
        _check_metrics(task, split, document_indices)
    docs = task.eval_docs
    tolerated: list[str] = []
    for index in document_indices:
        doc = docs[index]
        fault = _find_fault(task, doc, is_scored)
        if fault is None:
            continue
        location = f"task '{task.config.task}', document {index} of {split}"
        if is_own or not fault.has_answer:
            raise LaminaError(
                f"{location} ('{document_start(task, doc)}'): {fault.sentence} Correct the "
                "document or the task file's keys for answers (doc_to_target, doc_to_choice), or "
                "leave the document out (process_docs)."
            )
        tolerated.append(f"{location}: {fault.sentence}")
    if tolerated:
        _logger.warning(
            "%d documents have choices that no score can tell apart. %s",
            len(tolerated),
            tolerated[0],
        )


def undecided_document(
    task: ConfigurableTask, doc: dict[str, Any], rows: Sequence[Sequence[Any]]
) -> str | None:
    """Describe a document in which a right and a wrong choice have the same tokens; else None.

    Every model gives both choices the same score, and lm-eval takes the first of them. The
    tokenizer may lack a script, or fold case, accents or width.

    rows: The tokens of each choice, with its context.
    """
    if task.config.output_type != "multiple_choice" or task.config.process_results is not None:
        return None
    try:
        right_indices = right_choices(task, doc)
    except NoAnswer:
        return None
    choices = task.doc_to_choice(doc)
    for right_index in right_indices:
        for index, text in enumerate(choices):
            if index not in right_indices and rows[index] == rows[right_index]:
                return (
                    f"'{document_start(task, doc)}' with its choices {right_index} "
                    f"{shorten_value(choices[right_index])} and {index} {shorten_value(text)}"
                )
    return None


def check_undecided(where: str, undecided: Sequence[str], n_documents: int) -> None:
    """Refuse documents if half or more are undecided; if fewer are, log their number.

    undecided: The undecided documents, as `undecided_document` describes them.

    Raises LaminaError that begins with `where`.
    """
    if not undecided:
        return
    fault = (
        f"{where}: {len(undecided)} of {n_documents} documents have a right choice whose "
        f"tokens are those of a wrong one, so no score can tell them apart, such as {undecided[0]}."
    )
    if 2 * len(undecided) >= n_documents:
        raise LaminaError(
            f"{fault} This model's tokenizer lacks the script, or ignores case, accents or width. "
            "Write choices whose tokens differ, or leave the task out for this model."
        )
    _logger.warning("%s", fault)


def _check_metrics(task: ConfigurableTask, split: str, document_indices: Iterable[int]) -> None:
    """Refuse a task with choices if lm-eval cannot measure its metrics on them.

    Raises LaminaError that names the task and the metrics that it can have.
    """
    if task.config.output_type != "multiple_choice" or task.config.process_results is not None:
        return
    aggregations = task.aggregation()
    advice = "Write acc, acc_norm or mcc under metric_list in its task file."
    if not _CHOICE_METRICS & set(aggregations):
        raise LaminaError(
            f"task '{task.config.task}': lm-eval measures none of its metrics "
            f"({', '.join(aggregations)}) on choices. {advice}"
        )
    if aggregations.get("f1") is not metrics.f1_score:
        return
    for index in document_indices:
        n_choices = len(task.doc_to_choice(task.eval_docs[index]))
        if n_choices > 2:
            raise LaminaError(
                f"task '{task.config.task}': its metric f1 is that of two classes, and document "
                f"{index} of {split} has {n_choices} choices. {advice}"
            )


def _find_fault(task: ConfigurableTask, doc: dict[str, Any], is_scored: bool) -> Fault | None:
    """What is wrong with the answer or the choices of a document; None if nothing is."""
    output_type = task.config.output_type
    if output_type == "loglikelihood_rolling":
        return None
    if is_scored and task.config.process_results is not None:
        return None

    has_choices = output_type == "multiple_choice"
    gold = _gold(task, doc) if has_choices else task.doc_to_target(doc)
    has_several = isinstance(gold, list)
    try:
        if has_choices:
            _check_some_are_wrong(task, doc)
        elif output_type == "loglikelihood" and has_several:
            raise NoAnswer("it has several right answers, but a likelihood is that of one answer.")
        else:
            right_texts(task, doc)
    except NoAnswer as error:
        return Fault(str(error), has_answer=False)

    if is_scored and (has_several or has_choices) and has_several != bool(task.multiple_target):
        answers = "a single right answer"
        answers_of_first = "a list"
        if has_several:
            answers = "a list of right answers"
            answers_of_first = "a single one"
        sentence = (
            f"it has {answers}, but the first document of the task has {answers_of_first}: "
            "lm-eval would count it as wrong."
        )
        return Fault(sentence, has_answer=False)

    if not has_choices:
        return None
    choices = task.doc_to_choice(doc)
    ambiguity = choices_fault(choices) or equal_choices_fault(choices, right_choices(task, doc))
    return Fault(ambiguity, has_answer=True) if ambiguity else None


def _check_some_are_wrong(task: ConfigurableTask, doc: dict[str, Any]) -> None:
    """Raise NoAnswer if no choice is right, or all are."""
    n_right = len(right_choices(task, doc))
    n_choices = len(task.doc_to_choice(doc))
    if n_right == n_choices:
        raise NoAnswer(f"all of its {n_choices} choices are right, so there is nothing to choose.")


def _question(task: ConfigurableTask, doc: dict[str, Any]) -> str:
    """The text before the choices; if every choice has its own text, the text after them."""
    return str(task.doc_to_target(doc) if task.multiple_input else task.doc_to_text(doc))


def _gold(task: ConfigurableTask, doc: dict[str, Any]) -> Any:
    """The right choice as the task states it: an index, a text, or a list of these."""
    return task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)


def _as_list(gold: Any) -> list[Any]:
    if isinstance(gold, list) and not gold:
        raise NoAnswer("it has an empty list of right answers.")
    return gold if isinstance(gold, list) else [gold]


def _undo_template(answer: Any) -> Any:
    """The value of an answer before a template turned it into text."""
    if not isinstance(answer, str) or not answer.startswith("{"):
        return answer
    try:
        return ast.literal_eval(answer)
    except (SyntaxError, ValueError):
        return answer


def _choice_index(gold: Any, choices: list[str]) -> int:
    """The index of the choice that `gold` means: an index from 0, or the text of a choice."""
    if isinstance(gold, str):
        if gold in choices:
            return choices.index(gold)
        raise NoAnswer(
            f"its right answer is {shorten_value(gold)}, which is none of its {len(choices)} choices."
        )
    if not isinstance(gold, int):
        advice = ""
        if isinstance(gold, float) and gold.is_integer():
            # A column with empty cells turns 1 into 1.0, which lm-eval itself does not accept.
            advice = ": write whole numbers, or append `| int`"
        raise NoAnswer(
            f"its right answer is {shorten_value(gold)}, not the number of a choice{advice}."
        )
    if not 0 <= gold < len(choices):
        raise NoAnswer(
            f"its right answer is {shorten_value(gold)}, but its choices are numbered 0 to "
            f"{len(choices) - 1}."
        )
    return int(gold)

"""The right answers of lm-eval's documents, and the documents that are refused because they have none.

lm-eval counts a document without a possible answer as wrong and goes on, or takes the last choice for number -1.
"""

import ast
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from lm_eval.api import metrics
from lm_eval.api.task import ConfigurableTask

from lamina.data.files import choices_fault, shown
from lamina.errors import LaminaError

# Metrics that lm-eval measures on choices.
_OF_CHOICES = {
    *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"),
    *("f1", "mcc", "brier_score", "likelihood"),
}

_logger = logging.getLogger(__name__)


class NoAnswer(Exception):
    """A document has no answer that could be right; the text is a sentence that says why."""


def document_text(task: ConfigurableTask, doc: dict[str, Any]) -> tuple[str, list[str]]:
    """Question and choices of one document, without few-shot examples; what is to be written is a single choice."""
    if task.config.output_type != "multiple_choice":
        return str(task.doc_to_text(doc)), [str(task.doc_to_target(doc))]
    text = task.doc_to_target(doc) if task.multiple_input else task.doc_to_text(doc)
    return str(text), [str(choice) for choice in task.doc_to_choice(doc)]


def right_choices(task: ConfigurableTask, doc: dict[str, Any]) -> list[int]:
    """The numbers of the right choices of a document, the first of them first.

    Raises NoAnswer if there is none, or it is no number of a choice.
    """
    choices = task.doc_to_choice(doc)
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise NoAnswer(f"its choices are {shown(choices)}, not a list of texts.")
    return [_number(each, choices) for each in _several(_gold(task, doc))]


def right_texts(task: ConfigurableTask, doc: dict[str, Any]) -> list[str]:
    """The texts that are right answers of a document whose answer is written, the first of them first.

    Raises NoAnswer if there is none, or it is no text.
    """
    gold = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None:
        if isinstance(gold, list):
            raise NoAnswer("it has several right choices, of which one is to be written.")
        choices = task.doc_to_choice(doc)
        gold = choices[_number(gold, choices)]
    texts = []
    for answer in _several(gold):
        if isinstance(gold, list) and not isinstance(answer, str):
            raise NoAnswer(f"its right answers are {shown(gold)}, which are not texts.")
        if isinstance(_value(answer), dict):
            raise NoAnswer(
                f"its right answer is {shown(answer)}, fields of which one is to be named."
            )
        if answer is None or not str(answer).strip():
            raise NoAnswer(f"its right answer is {shown(answer)}, which is no text.")
        texts.append(str(answer))
    return list(dict.fromkeys(texts))


def check(
    task: ConfigurableTask, split: str, own: bool, numbers: Iterable[int], scored: bool
) -> None:
    """Refuse documents (by their numbers in the task) whose right answer lm-eval or lamina cannot count.

    split: What messages call the documents.
    own: Whether the task file is the user's: choices that no score tells apart are then refused as in a file of
        questions, and only counted in the log otherwise, since published tasks have some.
    scored: Whether lm-eval itself compares the answers. It takes all documents to have as many right answers as the
        first.

    Raises LaminaError, which names the task, the document and what is wrong.
    """
    if scored:
        _check_metrics(task, split, numbers)
    doubtful, docs = [], task.eval_docs
    for number in numbers:
        doc = docs[number]
        fault, mild = _fault(task, doc, scored)
        at = f"task '{task.config.task}', document {number} of {split}"
        if fault and (own or not mild):
            raise LaminaError(
                f"{at} ('{document_start(task, doc)}'): {fault} Correct the document, or what the task file says of "
                "its answer (doc_to_target, doc_to_choice), or leave the document out (process_docs)."
            )
        if fault:
            doubtful.append(f"{at}: {fault}")
    if doubtful:
        _logger.warning(
            "%d documents have choices that no score tells apart. %s", len(doubtful), doubtful[0]
        )


def _check_metrics(task: ConfigurableTask, split: str, numbers: Iterable[int]) -> None:
    """Refuse metrics of a task with choices that lm-eval stops at, or of which it measures none.

    Raises LaminaError, which names the task and the metrics that it can have.
    """
    if task.config.output_type != "multiple_choice" or task.config.process_results is not None:
        return
    aggregations = task.aggregation()
    remedy = "Write acc, acc_norm or mcc under metric_list in its task file."
    if not _OF_CHOICES & set(aggregations):
        raise LaminaError(
            f"task '{task.config.task}': lm-eval measures none of its metrics ({', '.join(aggregations)}) on choices. "
            f"{remedy}"
        )
    if aggregations.get("f1") is not metrics.f1_score:
        return
    for number in numbers:
        n_choices = len(task.doc_to_choice(task.eval_docs[number]))
        if n_choices > 2:
            raise LaminaError(
                f"task '{task.config.task}': its metric f1 is that of two classes, and document {number} of {split} "
                f"has {n_choices} choices. {remedy}"
            )


def undecided_document(
    task: ConfigurableTask, doc: dict[str, Any], rows: Sequence[Sequence[Any]]
) -> str | None:
    """A document and two of its choices, a right and a wrong one, that are the same tokens; None if there are none.

    Every model gives both the same score, and lm-eval takes the first of them. `rows` are the tokens of the choices,
    with their contexts. The tokenizer may lack a script, or fold case, accents or width.
    """
    if task.config.output_type != "multiple_choice" or task.config.process_results is not None:
        return None
    try:
        right = right_choices(task, doc)
    except NoAnswer:
        return None
    choices = task.doc_to_choice(doc)
    for right_choice in right:
        for choice, text in enumerate(choices):
            if choice not in right and rows[choice] == rows[right_choice]:
                return (
                    f"'{document_start(task, doc)}' with its choices {right_choice} "
                    f"{shown(choices[right_choice])} and {choice} {shown(text)}"
                )
    return None


def check_undecided(where: str, undecided: Sequence[str], n_documents: int) -> None:
    """Refuse documents of which half or more are `undecided` (`undecided_document`); log their number otherwise.

    Raises LaminaError, which begins with `where`.
    """
    if not undecided:
        return
    fault = (
        f"{where}: {len(undecided)} of {n_documents} documents have a right choice whose tokens are those of a wrong "
        f"one, so that no score decides them, such as {undecided[0]}."
    )
    if 2 * len(undecided) >= n_documents:
        raise LaminaError(
            f"{fault} The tokenizer of this model lacks the script, or does not tell case, accents or width apart. "
            "Write choices that differ in its tokens, or leave the task out for this model."
        )
    _logger.warning("%s", fault)


def document_start(task: ConfigurableTask, doc: dict[str, Any]) -> str:
    """The first words of a question, for messages."""
    try:
        text = str(
            task.doc_to_target(doc) if task.multiple_input else task.doc_to_text(doc)
        ).strip()
    except (IndexError, KeyError, TypeError):
        text = str(doc)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _fault(task: ConfigurableTask, doc: dict[str, Any], scored: bool) -> tuple[str | None, bool]:
    """What is wrong with a document, and whether it has a right answer all the same."""
    kind = task.config.output_type
    if kind == "loglikelihood_rolling" or (scored and task.config.process_results is not None):
        return None, False
    choice = kind == "multiple_choice"
    several = isinstance(_gold(task, doc) if choice else task.doc_to_target(doc), list)
    choices = task.doc_to_choice(doc) if choice else []
    try:
        if choice and len(right_choices(task, doc)) == len(choices):
            return (
                f"all of its {len(choices)} choices are right, so there is nothing to choose.",
                False,
            )
        if kind == "loglikelihood" and several:
            return "it has several right answers, and the likelihood is that of one.", False
        if not choice:
            right_texts(task, doc)
    except NoAnswer as error:
        return str(error), False
    if scored and (several or choice) and several != bool(task.multiple_target):
        one, other = (
            ("a list of right answers", "a single one")
            if several
            else ("a single right answer", "a list")
        )
        fault = f"it has {one}, and the first document of the task has {other}: lm-eval would count it as wrong."
        return fault, False
    return choices_fault(choices) if choice else None, True


def _gold(task: ConfigurableTask, doc: dict[str, Any]) -> Any:
    """What a task with choices says of the right one."""
    return task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)


def _several(gold: Any) -> list[Any]:
    if isinstance(gold, list) and not gold:
        raise NoAnswer("it has an empty list of right answers.")
    return gold if isinstance(gold, list) else [gold]


def _value(answer: Any) -> Any:
    """What an answer was before a template made it a text."""
    if not isinstance(answer, str) or not answer.startswith("{"):
        return answer
    try:
        return ast.literal_eval(answer)
    except (SyntaxError, ValueError):
        return answer


def _number(gold: Any, choices: list[str]) -> int:
    """The number of the choice that `gold` means: a number from 0, or the text of a choice."""
    if isinstance(gold, str):
        if gold in choices:
            return choices.index(gold)
        raise NoAnswer(
            f"its right answer is {shown(gold)}, which is none of its {len(choices)} choices."
        )
    if not isinstance(gold, int):
        # lm-eval itself stops at 1.0, which a column with empty places makes of 1.
        meant = (
            ": write whole numbers, or `| int` behind it"
            if isinstance(gold, float) and gold.is_integer()
            else ""
        )
        raise NoAnswer(f"its right answer is {shown(gold)}, which is no number of a choice{meant}.")
    if not 0 <= gold < len(choices):
        raise NoAnswer(
            f"its right answer is {shown(gold)}, but its choices are numbered 0 to {len(choices) - 1}."
        )
    return int(gold)

"""Questions of one's own: a .jsonl file with `query`, `choices` and `gold` in each line. No torch is imported here."""

from pathlib import Path
from typing import Any

from lamina.data.files import json_lines, read_text, shown
from lamina.errors import LaminaError

_FORM = (
    'Write one JSON object a line: {"query": "…", "choices": ["…", "…"], "gold": 0}, gold being the number of the '
    "right choice, counted from 0."
)


def read_questions(path: Path, where: str = "choices") -> list[dict[str, Any]]:
    """The questions of a file: query (str), choices (two or more different texts) and gold (int).

    Other keys of a line are left out. `where` is the key of the configuration that messages name.

    Raises
    ------
    LaminaError
        If there is no such file, it is not UTF-8 or holds no question, or a line is no question. The message
        names the first such line.
    """
    text = read_text(path, where, "a .jsonl file with query, choices and gold in each line")
    questions = []
    for at, record in json_lines(text, f"{where}: {path}", _FORM):
        if fault := _fault(record):
            raise LaminaError(f"{at}: {fault} {_FORM}")
        questions.append({key: record[key] for key in ("query", "choices", "gold")})
    if not questions:
        raise LaminaError(f"{where}: {path} holds no question. {_FORM}")
    return questions


def check_limit(limit: int | None, questions: int | None, where: str, source: str) -> None:
    """Refuse a number of samples that is more than there are."""
    if limit and questions is not None and limit > questions:
        raise LaminaError(
            f"{where}: {limit} samples are asked for, and '{source}' has {questions}. Write at most {questions}, or "
            "leave it out."
        )


def check_examples(num_fewshot: int | None, questions: int | None, where: str, file: str) -> None:
    """Refuse more examples than there are: they are drawn from the other questions of the file."""
    if num_fewshot and questions is not None and num_fewshot >= questions:
        raise LaminaError(
            f"{where}: {num_fewshot} examples are more than the other {questions - 1} questions of '{file}', from "
            f"which they are drawn. Write at most {questions - 1}."
        )


def _fault(record: Any) -> str | None:
    """A sentence that says why a line is no question; None if it is one."""
    if not isinstance(record, dict):
        return f"{shown(record)} is not a question."
    for key in ("query", "choices", "gold"):
        if key not in record:
            return f"`{key}` is missing."
    query, choices, gold = record["query"], record["choices"], record["gold"]
    if not isinstance(query, str):
        return f"query is {shown(query)}, not a text."
    if query and not query.strip():
        return f"query is {shown(query)}, which is white space only."
    if not isinstance(choices, list):
        return f"choices is {shown(choices)}, not a list of texts."
    for number, choice in enumerate(choices):
        if not isinstance(choice, str):
            return f"choice {number} is {shown(choice)}, not a text."
        if not choice.strip():
            return f"choice {number} is empty, so nothing could be scored."
        same = [other for other in range(number) if choices[other].strip() == choice.strip()]
        if same:
            return f"choices {same[0]} and {number} are both {shown(choice)}, so no score could tell them apart."
    if len(choices) < 2:
        return f"choices has {len(choices) or 'no'} entr{'y' if choices else 'ies'}, so there is nothing to choose."
    if isinstance(gold, bool) or not isinstance(gold, int):
        meant = f" Write {choices.index(gold)}." if gold in choices else ""
        return f"gold is {shown(gold)}, not a whole number.{meant}"
    if not 0 <= gold < len(choices):
        return f"gold is {gold}, but the choices are numbered 0 to {len(choices) - 1}."
    return None

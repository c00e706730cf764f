"""The user's own files: UTF-8 text, lines of JSON, questions, labelled texts, pairs of prompts.

The configuration reads them too, so there is no torch here.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError

LABELLED = 'Each line is {"text": …, "label": …}.'
PAIRS = 'Each line is {"clean": …, "corrupt": …, "right": …, "foil": …}: two prompts, and what follows each.'
_QUESTION = (
    'Write one JSON object a line: {"query": "…", "choices": ["…", "…"], "gold": 0}, gold being the number of the '
    "right choice, counted from 0."
)


def read_text(path: Path, where: str, form: str) -> str:
    """The text of a file without a byte order mark, lines ending in \\n; `where` is the key that names it.

    Raises LaminaError if there is no such file, or it is not UTF-8. `form` describes the file in the message.
    """
    if not path.is_file():
        raise LaminaError(f"{where}: there is no file {path}. Write the path of {form}.")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LaminaError(
            f"{where}: {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}). Save the file as "
            "UTF-8, for example with `iconv -f latin1 -t utf-8`."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_lines(text: str, place: str, form: str) -> Iterator[tuple[str, Any]]:
    """(place with line number, value) of each line that is not blank. Only \\n ends a line: U+2028 may stand in a text.

    Raises LaminaError at the first line that is not JSON, with the `form` that it should have.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            at = f"{place}, line {number}"
            try:
                yield at, json.loads(line)
            except json.JSONDecodeError as error:
                raise LaminaError(
                    f"{at}: not JSON ({error.msg}, column {error.colno}). {form}"
                ) from error


def shown(value: Any) -> str:
    """A value as JSON writes it, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_questions(path: Path, where: str = "choices") -> list[dict[str, Any]]:
    """The questions of a file: query (str), choices (two or more different texts) and gold (int).

    Other keys of a line are left out. `where` is the key of the configuration that messages name.

    Raises LaminaError if there is no such file, it is not UTF-8 or holds no question, or a line is no question. The
    message names the first such line.
    """
    text = read_text(path, where, "a .jsonl file with query, choices and gold in each line")
    questions = []
    for at, record in json_lines(text, f"{where}: {path}", _QUESTION):
        if fault := _fault(record):
            raise LaminaError(f"{at}: {fault} {_QUESTION}")
        questions.append({key: record[key] for key in ("query", "choices", "gold")})
    if not questions:
        raise LaminaError(f"{where}: {path} holds no question. {_QUESTION}")
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


def choices_fault(choices: list[Any]) -> str | None:
    """A sentence that says why nothing can be chosen among these; None if something can."""
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
    return None


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
    if fault := choices_fault(choices):
        return fault
    if isinstance(gold, bool) or not isinstance(gold, int):
        meant = f" Write {choices.index(gold)}." if gold in choices else ""
        return f"gold is {shown(gold)}, not a whole number.{meant}"
    if not 0 <= gold < len(choices):
        return f"gold is {gold}, but the choices are numbered 0 to {len(choices) - 1}."
    return None


def labelled(path: Path, where: str, folds: int) -> list[tuple[str, str]]:
    """Texts and their labels; `where` is the key that names the file.

    Raises LaminaError if a line has another form, or there are fewer than two labels with a line in each of `folds`
    folds.
    """
    lines = _lines(path, where, {"text": str, "label": object}, LABELLED)
    texts = [(line["text"], str(line["label"])) for _, line in lines]
    counts = Counter(label for _, label in texts)
    few = sorted(label for label, count in counts.items() if count < folds)
    if few or len(counts) < 2:
        raise LaminaError(
            f"{where}: {path} has {len(counts)} labels"
            + (f", and only {counts[few[0]]} of '{few[0]}'" if few else "")
            + f". Write two labels or more, and at least {folds} lines of each, one for every fold."
        )
    return texts


def pairs(path: Path, where: str) -> list[tuple[str, dict[str, str]]]:
    """Pairs of prompts, each after its place in the file.

    Raises LaminaError if a line has another form, or has two equal prompts or answers; or if there is no line.
    """
    lines = _lines(path, where, dict.fromkeys(("clean", "corrupt", "right", "foil"), str), PAIRS)
    for at, line in lines:
        for one, other in (("clean", "corrupt"), ("right", "foil")):
            if line[one].strip() == line[other].strip():
                raise LaminaError(
                    f"{at}: `{one}` and `{other}` are both {shown(line[one])}. Write two that differ."
                )
    if not lines:
        raise LaminaError(f"{where}: {path} is empty. {PAIRS}")
    return lines


def _lines(path: Path, where: str, keys: dict[str, type], form: str) -> list[tuple[str, Any]]:
    lines = list(json_lines(read_text(path, where, "a .jsonl file"), str(path), form))
    for at, line in lines:
        for key, kind in keys.items():
            if (
                not isinstance(line, dict)
                or not isinstance(line.get(key), kind)
                or line.get(key) in ("", None)
            ):
                raise LaminaError(f"{at}: `{key}` is missing or no text. {form}")
    return lines

"""The user's own files: UTF-8 text, lines of JSON, questions, labelled texts, pairs of prompts.

The configuration reads them too, so there is no torch here.
"""

import codecs
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
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
LONGEST_MARK = max(map(len, _BYTE_ORDER_MARKS))


def read_text(path: Path, where: str, form: str) -> str:
    """The text of a file without a byte order mark, lines ending in \\n; `where` is the key that names it.

    UTF-16 and UTF-32 are read where the file begins with their mark.

    Raises LaminaError if there is no such file, it is in another encoding, or it holds NUL. `form` describes the file
    in the message.
    """
    if not path.is_file():
        raise LaminaError(f"{where}: there is no file {path}. Write the path of {form}.")
    text = decode(path.read_bytes(), f"{where}: {path}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def encoding_of(start: bytes) -> str:
    """The encoding of a file that begins with these bytes: what its byte order mark says, else UTF-8."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    return "utf-8"


def decode(data: bytes, place: str, first_line: int = 1) -> str:
    """The text of a file's bytes, without a byte order mark; `place` begins messages, `first_line` counts the lines.

    Raises LaminaError, with the line, if the bytes are in another encoding or hold NUL, which no text has.
    """
    encoding = encoding_of(data)
    if encoding in ("utf-8", "utf-8-sig") and b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + first_line
        raise LaminaError(f"{place}, line {line}: {_nul_fault(data)}")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + first_line
        raise LaminaError(
            f"{place}, line {line}: not {encoding.removesuffix('-sig').upper()} (byte "
            f"0x{data[error.start]:02x}). Save the file as UTF-8, for example with `iconv -f ENCODING -t utf-8`, "
            "ENCODING being what it was saved in, such as latin1, gbk or shift_jis."
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + first_line
        raise LaminaError(f"{place}, line {line}: {_nul_fault(b'')}")
    return text


def _nul_fault(data: bytes) -> str:
    """A sentence on NUL in a file: what UTF-16 without a mark looks like, or damage."""
    n_even = data[::2].count(0)
    n_odd = data[1::2].count(0)
    # In UTF-16, NUL is one byte of every character of Latin scripts, and of every line break.
    if max(n_even, n_odd) > 1 and min(n_even, n_odd) <= max(n_even, n_odd) / 10:
        encoding = "utf-16be" if n_even > n_odd else "utf-16le"
        return (
            "it holds NUL, as UTF-16 without a byte order mark does. Save the file as UTF-8, for example with "
            f"`iconv -f {encoding} -t utf-8`."
        )
    return (
        "it holds NUL, which no text does: the file is damaged, or it is no text. Take the NUL out, for example with "
        "`tr -d '\\000'`, or restore the file."
    )


def surrogate_fault(value: Any) -> str | None:
    """A sentence that says that a value of JSON holds half of a pair such as \\ud83d; None if it does not.

    JSON can write it, but it is no character, and no tokenizer takes it.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        before = text[max(0, error.start - 20) : error.start]
        return (
            f"'…{before}{half}' ends with half of a character ({half}), which an emoji cut in two leaves. Write the "
            "whole character, or take the half out."
        )
    return None


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
    """A value as JSON writes it, short enough for a message; halves of characters, which nothing prints, by number."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def listed_values(value: Any, field: str) -> list[Any] | None:
    """The entries of a list, or of an object that holds a list of objects under one of its keys, as SQuAD does.

    None for anything else, and for an object that has `field` itself.
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, dict) or field in value:
        return None
    lists = [each for each in value.values() if isinstance(each, list) and each]
    if len(lists) != 1 or not all(isinstance(entry, dict) for entry in lists[0]):
        return None
    return lists[0]


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
    if fault := surrogate_fault([query, choices]):
        return fault
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
            if fault := surrogate_fault(line[key]):
                raise LaminaError(f"{at}: {fault}")
    return lines

"""Reads the user's own files: UTF-8 text, JSON lines, questions, labelled texts, prompt pairs.

The configuration reads them too, so this module does not import torch.
"""

import codecs
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError

_QUESTION_FORM = (
    'Write one JSON object per line: {"query": "…", "choices": ["…", "…"], "gold": 0}. `gold` '
    "is the number of the right choice, counted from 0."
)
_LABELLED_FORM = 'Each line is {"text": …, "label": …}.'
_PAIR_FORM = (
    'Each line is {"clean": …, "corrupt": …, "right": …, "foil": …}: two prompts, and what follows '
    "each."
)
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
LONGEST_MARK = max(map(len, _BYTE_ORDER_MARKS))  # bytes


def read_text(path: Path, where: str, form: str) -> str:
    """The text of a file without a byte order mark, with lines ending in \\n.

    UTF-16 and UTF-32 are read if the file begins with their mark.

    where: The key that names the file.
    form: What the file should be, for the message.

    Raises LaminaError if there is no such file, it is in another encoding, or it holds NUL.
    """
    if not path.is_file():
        raise LaminaError(f"{where}: there is no file {path}. Write the path of {form}.")
    text = decode_text(path.read_bytes(), f"{where}: {path}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def encoding_of(start: bytes) -> str:
    """The encoding of a file that begins with these bytes: by its byte order mark, else UTF-8."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    return "utf-8"


def decode_text(data: bytes, location: str, first_line: int = 1) -> str:
    """The text of a file's bytes, without a byte order mark.

    location: What messages begin with.
    first_line: The number of the first line of `data` in its file.

    Raises LaminaError that names the line, if the bytes are in another encoding or hold NUL, which
    no text has.
    """
    encoding = encoding_of(data)
    if encoding in ("utf-8", "utf-8-sig") and b"\0" in data:
        line_number = first_line + data[: data.index(b"\0")].count(b"\n")
        raise LaminaError(f"{location}, line {line_number}: {_explain_nul(data)}")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line_number = first_line + data[: error.start].count(b"\n")
        encoding_name = encoding.removesuffix("-sig").upper()
        raise LaminaError(
            f"{location}, line {line_number}: not {encoding_name} (byte "
            f"0x{data[error.start]:02x}). Save the file as UTF-8, for example with `iconv -f "
            "ENCODING -t utf-8`, where ENCODING is that of the file, such as latin1, gbk or "
            "shift_jis."
        ) from error
    if "\0" in text:
        line_number = first_line + text[: text.index("\0")].count("\n")
        raise LaminaError(f"{location}, line {line_number}: {_explain_nul(b'')}")
    return text


def _explain_nul(data: bytes) -> str:
    """A sentence on NUL in a file: UTF-16 without a mark, or damage."""
    n_even = data[::2].count(0)
    n_odd = data[1::2].count(0)
    # In UTF-16, NUL is one byte of every character of Latin scripts, and of every line break.
    if max(n_even, n_odd) > 1 and min(n_even, n_odd) <= max(n_even, n_odd) / 10:
        encoding = "utf-16be" if n_even > n_odd else "utf-16le"
        return (
            "it holds NUL, as UTF-16 without a byte order mark does. Save the file as "
            f"UTF-8, for example with `iconv -f {encoding} -t utf-8`."
        )
    return (
        "it holds NUL, which no text does: the file is damaged, or it is not a text file. Remove "
        "the NUL bytes, for example with `tr -d '\\000'`, or restore the file."
    )


def surrogate_fault(value: Any) -> str | None:
    """A sentence on half of a surrogate pair, such as \\ud83d, in a JSON value, if any.

    JSON can contain it, but it is not a character, and no tokenizer accepts it.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        before = text[max(0, error.start - 20) : error.start]
        return (
            f"'…{before}{half}' ends with half of a character ({half}), such as half an emoji. Write "
            "the whole character, or remove the half."
        )
    return None


def json_lines(text: str, location: str, form: str) -> Iterator[tuple[str, Any]]:
    """The location, with the line number, and the value of each line that is not blank.

    Only \\n ends a line: U+2028 may stand in a text.

    Raises LaminaError at the first line that is not JSON, with the `form` that it should have.
    """
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        line_location = f"{location}, line {line_number}"
        try:
            yield line_location, json.loads(line)
        except json.JSONDecodeError as error:
            raise LaminaError(
                f"{line_location}: not JSON ({error.msg}, column {error.colno}). {form}"
            ) from error


def shorten_value(value: Any) -> str:
    """A value as JSON writes it, short enough for a message.

    Halves of surrogate pairs, which cannot be printed, are shown by number.
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def listed_values(value: Any, field: str) -> list[Any] | None:
    """The entries of a list, or of an object with one list of objects in it, as SQuAD has.

    None for anything else, and for an object that has `field` itself.
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, dict) or field in value:
        return None
    lists = [entry for entry in value.values() if isinstance(entry, list) and entry]
    if len(lists) != 1 or not all(isinstance(entry, dict) for entry in lists[0]):
        return None
    return lists[0]


def read_questions(path: Path, where: str = "choices") -> list[dict[str, Any]]:
    """The questions of a file: query (str), choices (two or more different texts) and gold (int).

    Other keys of a line are left out. `where` is the key of the configuration that messages name.

    Raises LaminaError if there is no such file, it is not UTF-8 or holds no question, or a line is
    not a question. The message names the first such line.
    """
    text = read_text(path, where, "a .jsonl file with query, choices and gold in each line")
    questions: list[dict[str, Any]] = []
    for location, record in json_lines(text, f"{where}: {path}", _QUESTION_FORM):
        if fault := find_question_fault(record):
            raise LaminaError(f"{location}: {fault} {_QUESTION_FORM}")
        questions.append({key: record[key] for key in ("query", "choices", "gold")})
    if not questions:
        raise LaminaError(f"{where}: {path} holds no question. {_QUESTION_FORM}")
    return questions


def check_limit(limit: int | None, n_questions: int | None, where: str, source: str) -> None:
    """Refuse a number of samples that is larger than the number available."""
    if limit and n_questions is not None and limit > n_questions:
        raise LaminaError(
            f"{where}: {limit} samples are asked for, but '{source}' has only {n_questions}. Write "
            f"at most {n_questions}, or leave it out."
        )


def check_examples(num_fewshot: int | None, n_questions: int | None, where: str, file: str) -> None:
    """Refuse more examples than the file has other questions, from which they are drawn."""
    if num_fewshot and n_questions is not None and num_fewshot >= n_questions:
        raise LaminaError(
            f"{where}: {num_fewshot} examples cannot be drawn from the other {n_questions - 1} "
            f"questions of '{file}'. Write at most {n_questions - 1}."
        )


def choices_fault(choices: list[Any]) -> str | None:
    """A sentence that says why these are no valid choices; None if they are."""
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            return f"choice {index} is {shorten_value(choice)}, not a text."
        if not choice.strip():
            return f"choice {index} is empty, so nothing could be scored."
    if not choices:
        return "choices has no entries, so there is nothing to choose."
    if len(choices) == 1:
        return "choices has 1 entry, so there is nothing to choose."
    return None


def equal_choices_fault(choices: list[str], right: Collection[int]) -> str | None:
    """A sentence that names a right and a wrong choice that are equal; None without such a pair.

    Two wrong choices may be equal: whichever has the higher score, the answer is wrong.

    right: Indices of the right choices.
    """
    for (first, first_text), (second, text) in itertools.combinations(enumerate(choices), 2):
        if first_text.strip() == text.strip() and (first in right) != (second in right):
            return (
                f"choices {first} and {second} are both {shorten_value(text)}, and one of them is "
                "right, so no score could tell right from wrong."
            )
    return None


def find_question_fault(record: Any) -> str | None:
    """A sentence that says why a line is not a question; None if it is one."""
    if not isinstance(record, dict):
        return f"{shorten_value(record)} is not a question."
    for key in ("query", "choices", "gold"):
        if key not in record:
            return f"`{key}` is missing."

    query = record["query"]
    if not isinstance(query, str):
        return f"query is {shorten_value(query)}, not a text."
    if query and not query.strip():
        return f"query is {shorten_value(query)}, which is white space only."

    choices = record["choices"]
    if not isinstance(choices, list):
        return f"choices is {shorten_value(choices)}, not a list of texts."
    return (
        surrogate_fault([query, choices])
        or choices_fault(choices)
        or _find_gold_fault(record["gold"], choices)
        or equal_choices_fault(choices, [record["gold"]])
    )


def _find_gold_fault(gold: Any, choices: list[str]) -> str | None:
    if isinstance(gold, bool) or not isinstance(gold, int):
        advice = f" Write {choices.index(gold)}." if gold in choices else ""
        return f"gold is {shorten_value(gold)}, not a whole number.{advice}"
    if not 0 <= gold < len(choices):
        return f"gold is {gold}, but the choices are numbered 0 to {len(choices) - 1}."
    return None


def read_labelled(path: Path, where: str, folds: int) -> list[tuple[str, str]]:
    """Texts and their labels; `where` is the key that names the file.

    Raises LaminaError if a line has another form, or there are fewer than two labels with a line in
    each of `folds` folds.
    """
    lines = _read_lines(path, where, {"text": str, "label": object}, _LABELLED_FORM)
    texts = [(line["text"], str(line["label"])) for _, line in lines]
    counts = Counter(label for _, label in texts)
    rare_labels = sorted(label for label, count in counts.items() if count < folds)
    if rare_labels or len(counts) < 2:
        rarest = ""
        if rare_labels:
            rarest = f", and only {counts[rare_labels[0]]} of '{rare_labels[0]}'"
        raise LaminaError(
            f"{where}: {path} has {len(counts)} labels{rarest}. Write at least two labels, and at "
            f"least {folds} lines of each, one per fold."
        )
    return texts


def read_pairs(path: Path, where: str) -> list[tuple[str, dict[str, str]]]:
    """Pairs of prompts, each preceded by its location in the file.

    Raises LaminaError if a line has another form, if it has two equal prompts or answers, or if
    there is no line.
    """
    keys = {"clean": str, "corrupt": str, "right": str, "foil": str}
    lines = _read_lines(path, where, keys, _PAIR_FORM)
    for location, line in lines:
        for first, second in (("clean", "corrupt"), ("right", "foil")):
            if line[first].strip() == line[second].strip():
                raise LaminaError(
                    f"{location}: `{first}` and `{second}` are both {shorten_value(line[first])}. Write "
                    "two that differ."
                )
    if not lines:
        raise LaminaError(f"{where}: {path} is empty. {_PAIR_FORM}")
    return lines


def _read_lines(
    path: Path, where: str, keys: Mapping[str, type], form: str
) -> list[tuple[str, Any]]:
    """The objects of a .jsonl file, each preceded by its location.

    keys: The keys that every object must have, with their types.
    """
    lines = list(json_lines(read_text(path, where, "a .jsonl file"), str(path), form))
    for location, line in lines:
        for key, value_type in keys.items():
            value = line.get(key) if isinstance(line, dict) else None
            if value in ("", None) or not isinstance(value, value_type):
                raise LaminaError(f"{location}: `{key}` is missing or not a text. {form}")
            if fault := surrogate_fault(value):
                raise LaminaError(f"{location}: {fault}")
    return lines

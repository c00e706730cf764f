"""Texts and questions of one's own: what is read, and what is refused with its line and the remedy."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lamina.data.documents import read_documents
from lamina.data.files import read_questions
from lamina.errors import LaminaError

GOOD = {"query": "Blood is", "choices": ["red", "blue"], "gold": 0}


def questions(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


def test_questions_are_read_and_other_keys_left_out(tmp_path: Path) -> None:
    """Keys that differ in type from line to line are no one's business; blank lines are none."""
    path = questions(tmp_path, GOOD | {"id": 1}, "", GOOD | {"id": "b"}, "")
    assert read_questions(path) == [GOOD, GOOD]


NO_QUESTIONS = [
    ("{", "not JSON"),
    ([1], "[1] is not a question"),
    ({"query": "a", "choices": ["b", "c"]}, "`gold` is missing"),
    (GOOD | {"query": 3}, "query is 3, not a text"),
    (GOOD | {"query": " \n"}, r'query is " \n", which is white space only'),
    (GOOD | {"choices": "red"}, 'choices is "red", not a list'),
    (GOOD | {"choices": []}, "choices has no entries"),
    (GOOD | {"choices": ["red"]}, "choices has 1 entry, so there is nothing to choose"),
    (GOOD | {"choices": ["red", 2]}, "choice 1 is 2, not a text"),
    (GOOD | {"choices": ["red", ""]}, "choice 1 is empty"),
    (GOOD | {"choices": ["red", "blue", "red "]}, 'choices 0 and 2 are both "red "'),
    (GOOD | {"gold": 0.0}, "gold is 0.0, not a whole number"),
    (GOOD | {"gold": False}, "gold is false, not a whole number"),
    (GOOD | {"gold": None}, "gold is null, not a whole number"),
    (GOOD | {"gold": "0"}, 'gold is "0", not a whole number'),
    (GOOD | {"gold": "blue"}, 'gold is "blue", not a whole number. Write 1.'),
    (GOOD | {"gold": 2}, "gold is 2, but the choices are numbered 0 to 1"),
    (GOOD | {"gold": -1}, "gold is -1, but"),
]


@pytest.mark.parametrize(("line", "words"), NO_QUESTIONS, ids=[case[1] for case in NO_QUESTIONS])
def test_a_line_that_is_no_question_is_named_with_its_fault_and_the_form(
    tmp_path: Path, line: Any, words: str
) -> None:
    with pytest.raises(LaminaError, match="holds no question"):
        read_questions(questions(tmp_path, ""))
    with pytest.raises(LaminaError) as caught:
        read_questions(questions(tmp_path, GOOD, line), "calibrations.mine.choices")
    message = str(caught.value)
    assert message.startswith(
        f"calibrations.mine.choices: {tmp_path}/mine.jsonl, line 2: {words}"
    ), message
    assert 'Write one JSON object a line: {"query": "…"' in message


@pytest.mark.parametrize("name", ["mine.jsonl", "a.jsonl", "a.json", "a.txt"])
def test_other_encodings_are_refused_with_the_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\n\xe9t\xe9")
    with pytest.raises(
        LaminaError,
        match=rf"{name}, line 2: not UTF-8 \(byte 0xe9\). Save the file as UTF-8.*iconv",
    ):
        read_questions(tmp_path / name) if name.startswith("mine") else read_documents(
            tmp_path / name
        )


TEXTS = {
    "a.json": '["one", {"text": "two"}]',
    "a.jsonl": '{"text": "one"}\n\n{"text": "two"}',
    "a.txt": "one\n\n\ntwo\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_documents_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TEXTS[name])
    assert read_documents(tmp_path / name) == ["one", "two"]
    assert (
        read_documents(tmp_path / name, "1:2") == read_documents(tmp_path / name, "1:") == ["two"]
    )


NO_TEXTS = [
    ("a.json", '{"text": "one"}', 'a.json: {"text": "one"} is not a list. Write a list of texts'),
    ("a.json", '["one", 2]', "a.json, entry 2: 2 is no text. Write a list of texts"),
    ("a.json", '["one",', "a.json, line 1: not JSON"),
    (
        "a.json",
        '{"text": "one"}\n{"text": "two"}',
        "a.json, line 2: not JSON (Extra data). One object a line is .jsonl",
    ),
    (
        "a.jsonl",
        '{"text": "one"}\n{"txt": "two"}',
        "a.jsonl, line 2: `text` is missing. Write one JSON object a line",
    ),
    ("a.jsonl", '{"text": "one"}\n\n{"text": 2}', 'a.jsonl, line 3: {"text": 2} is no text'),
    ("a.jsonl", '{"text": "one"}\n"two"', 'a.jsonl, line 2: "two" is no text'),
    ("a.jsonl", '{"text": "one"}\n{"text": ', "a.jsonl, line 2: not JSON"),
    ("a.txt", " \n\n\t", "holds no document"),
    ("a.json", '["", " "]', "holds no document (2 more are white space"),
    ("a.jsonl", "", "holds no document. Write the path of a .json (list of texts), .jsonl"),
]


@pytest.mark.parametrize(("name", "raw", "words"), NO_TEXTS, ids=[case[2] for case in NO_TEXTS])
def test_a_file_that_holds_no_document_is_refused_by_its_line(
    tmp_path: Path, name: str, raw: str, words: str
) -> None:
    (tmp_path / name).write_text(raw)
    with pytest.raises(LaminaError) as caught:
        read_documents(tmp_path / name, where="calibrations.corpus")
    assert str(caught.value).startswith("calibrations.corpus.text: ") and words in str(
        caught.value
    ), caught.value


def test_documents_of_white_space_do_not_count_and_their_number_is_said(
    tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "a.json").write_text('["one", " \\n", "two", ""]')
    with caplog.at_level(logging.WARNING):
        assert read_documents(tmp_path / "a.json", "0:2") == ["one", "two"]
    assert "holds 2 documents (2 more are white space and left out)" in caplog.text
    with pytest.raises(LaminaError, match="more than .*a.json holds, 2"):
        read_documents(tmp_path / "a.json", "0:3")

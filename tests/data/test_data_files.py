"""Texts and questions of one's own: what is read, and what is refused with its line and remedy."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lamina.data.documents import read_documents
from lamina.data.files import read_questions
from lamina.errors import LaminaError

QUESTION = {"query": "Blood is", "choices": ["red", "blue"], "gold": 0}


def write_questions(folder: Path, *lines: Any) -> Path:
    """A file of questions; a line that is text stands there as it is."""
    path = folder / "mine.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts))
    return path


def test_other_keys_of_questions_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    """Also keys whose type differs from line to line."""
    path = write_questions(tmp_path, QUESTION | {"id": 1}, "", QUESTION | {"id": "b"}, "")
    assert read_questions(path) == [QUESTION, QUESTION]


NOT_QUESTIONS = [
    ("{", "not JSON"),
    ([1], "[1] is not a question"),
    ({"query": "a", "choices": ["b", "c"]}, "`gold` is missing"),
    (QUESTION | {"query": 3}, "query is 3, not a text"),
    (QUESTION | {"query": " \n"}, r'query is " \n", which is white space only'),
    (QUESTION | {"choices": "red"}, 'choices is "red", not a list'),
    (QUESTION | {"choices": []}, "choices has no entries"),
    (QUESTION | {"choices": ["red"]}, "choices has 1 entry, so there is nothing to choose"),
    (QUESTION | {"choices": ["red", 2]}, "choice 1 is 2, not a text"),
    (QUESTION | {"choices": ["red", ""]}, "choice 1 is empty"),
    (QUESTION | {"choices": ["red", "blue", "red "]}, 'choices 0 and 2 are both "red "'),
    (QUESTION | {"gold": 0.0}, "gold is 0.0, not a whole number"),
    (QUESTION | {"gold": False}, "gold is false, not a whole number"),
    (QUESTION | {"gold": None}, "gold is null, not a whole number"),
    (QUESTION | {"gold": "0"}, 'gold is "0", not a whole number'),
    (QUESTION | {"gold": "blue"}, 'gold is "blue", not a whole number. Write 1.'),
    (QUESTION | {"gold": 2}, "gold is 2, but the choices are numbered 0 to 1"),
    (QUESTION | {"gold": -1}, "gold is -1, but"),
]


@pytest.mark.parametrize(
    ("line", "fault"), NOT_QUESTIONS, ids=[fault for _, fault in NOT_QUESTIONS]
)
def test_a_line_that_is_no_question_is_named_with_its_fault_and_the_right_form(
    tmp_path: Path, line: Any, fault: str
) -> None:
    file = write_questions(tmp_path, QUESTION, line)

    with pytest.raises(LaminaError) as refused:
        read_questions(file, "calibrations.mine.choices")

    message = str(refused.value)
    assert message.startswith(f"calibrations.mine.choices: {file}, line 2: {fault}")
    assert 'Write one JSON object per line: {"query": "…"' in message


def test_a_question_may_have_two_equal_wrong_choices(tmp_path: Path) -> None:
    question = QUESTION | {"choices": ["red", "blue", "blue"], "gold": 0}

    assert read_questions(write_questions(tmp_path, question)) == [question]


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="holds no question"):
        read_questions(write_questions(tmp_path, ""))


NOT_UTF8 = r"line 2: not UTF-8 \(byte 0xe9\). Save the file as UTF-8.*iconv"


def test_questions_in_another_encoding_are_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(b"\n\xe9t\xe9")
    with pytest.raises(LaminaError, match=f"mine.jsonl, {NOT_UTF8}"):
        read_questions(tmp_path / "mine.jsonl")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt"])
def test_texts_in_another_encoding_are_refused_with_the_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\n\xe9t\xe9")
    with pytest.raises(LaminaError, match=f"{name}, {NOT_UTF8}"):
        read_documents(tmp_path / name)


CONTENT_BY_NAME = {
    "a.json": '["one", {"text": "two"}]',
    "a.jsonl": '{"text": "one"}\n\n{"text": "two"}',
    "a.txt": "one\n\n\ntwo\n",
}


@pytest.mark.parametrize("name", CONTENT_BY_NAME)
def test_documents_are_read_whole_or_in_part(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CONTENT_BY_NAME[name])
    assert read_documents(tmp_path / name) == ["one", "two"]
    assert read_documents(tmp_path / name, "1:2") == ["two"]
    assert read_documents(tmp_path / name, "1:") == ["two"]


NOT_TEXTS = [
    ("a.json", '{"text": "one"}', 'a.json: {"text": "one"} is not a list. Write a list of texts'),
    ("a.json", '["one", 2]', "a.json, entry 2: 2 is not a text. Write a list of texts"),
    ("a.json", '["one",', "a.json, line 1: not JSON"),
    (
        "a.json",
        '{"text": "one"}\n{"text": "two"}',
        "a.json, line 2: not JSON (Extra data). If it has one object per line, rename it to .jsonl",
    ),
    (
        "a.jsonl",
        '{"text": "one"}\n{"txt": "two"}',
        "a.jsonl, line 2: `text` is missing. Write one JSON object per line",
    ),
    ("a.jsonl", '{"text": "one"}\n\n{"text": 2}', 'a.jsonl, line 3: {"text": 2} is not a text'),
    ("a.jsonl", '{"text": "one"}\n"two"', 'a.jsonl, line 2: "two" is not a text'),
    ("a.jsonl", '{"text": "one"}\n{"text": ', "a.jsonl, line 2: not JSON"),
    ("a.txt", " \n\n\t", "holds no document"),
    ("a.json", '["", " "]', "holds no document (2 more contain only white space"),
    ("a.jsonl", "", "holds no document. Write the path of a .json (list of texts), .jsonl"),
]


@pytest.mark.parametrize(
    ("name", "content", "fault"), NOT_TEXTS, ids=[fault for _, _, fault in NOT_TEXTS]
)
def test_a_file_that_holds_no_document_is_refused_by_its_line(
    tmp_path: Path, name: str, content: str, fault: str
) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(LaminaError) as refused:
        read_documents(tmp_path / name, where="calibrations.corpus")

    message = str(refused.value)
    assert message.startswith("calibrations.corpus.text: ")
    assert fault in message


def test_documents_of_white_space_do_not_count_and_their_number_is_reported(
    tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "a.json").write_text('["one", " \\n", "two", ""]')

    with caplog.at_level(logging.WARNING):
        assert read_documents(tmp_path / "a.json", "0:2") == ["one", "two"]

    assert "holds 2 documents (2 more contain only white space and are left out)" in caplog.text
    with pytest.raises(LaminaError, match="more than the 2 documents of .*a.json"):
        read_documents(tmp_path / "a.json", "0:3")

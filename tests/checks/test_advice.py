"""A configuration that is allowed and says hardly anything gets one line of advice, others none."""

import json
from pathlib import Path

import pytest

from lamina_workflow.checks.advice import advise_on
from lamina_workflow.checks.load import load_configuration
from tests.given.configurations import (
    RawConfig,
    minimal_config,
    set_key,
    write_model_and_data,
    write_model_folder,
)

INSTRUCT_MODEL = "Small-1B-Instruct"


def write_questions(file: Path, n_questions: int) -> None:
    lines = []
    for index in range(n_questions):
        question = {"query": f"{file.stem} {index}", "choices": ["b", "c"], "gold": 0}
        lines.append(json.dumps(question) + "\n")
    file.write_text("".join(lines))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files with enough questions and documents, a base model and an instruction-tuned one."""
    write_model_and_data(tmp_path)
    write_questions(tmp_path / "mine.jsonl", 40)
    write_questions(tmp_path / "mine_test.jsonl", 40)
    (tmp_path / "texts.jsonl").write_text('{"text": "a b c"}\n' * 3)
    (tmp_path / "book.jsonl").write_text('{"text": "a b c"}\n')
    instruct = write_model_folder(tmp_path / INSTRUCT_MODEL, {"num_hidden_layers": 8})
    (instruct / "chat_template.jinja").write_text("{{ messages }}")
    return tmp_path


def advise(raw: RawConfig, root: Path) -> list[str]:
    return advise_on(load_configuration(raw, root), root)


def test_a_sensible_configuration_gets_no_advice(root: Path) -> None:
    assert advise(minimal_config(), root) == []


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("calibrations.mine.limit", 12, "calibrations.mine: 12 questions"),
        ("calibrations.recall.limit", 29, "calibrations.recall: 29 questions"),
        ("benchmarks.tasks.mine.limit", 3, "benchmarks.tasks.mine: 3 questions"),
        ("calibrations.corpus.documents", "5:6", "calibrations.corpus.documents: one document"),
        (
            "calibrations.book",
            {"text": "book.jsonl", "documents": None},
            "calibrations.book.documents: one document",
        ),
        (
            "benchmarks.perplexity.book",
            {"text": "book.jsonl", "window": 8},
            "benchmarks.perplexity.book.documents: one document",
        ),
        ("studies.prune.tasks", ["mine"], "no benchmark measures 'recall'"),
        ("models.small.source", INSTRUCT_MODEL, "models.small.chat_template: "),
    ],
)
def test_what_says_hardly_anything_gets_one_line_of_advice(
    root: Path, key: str, value: object, advice: str
) -> None:
    [line] = advise(set_key(minimal_config(), key, value), root)

    assert advice in line
    assert "\n" not in line


def test_many_entries_of_a_kind_get_one_line(root: Path) -> None:
    raw = minimal_config()
    for number, limit in enumerate((12, 16, 16, 16, 40)):
        set_key(raw, f"calibrations.few{number}", {"choices": "mine.jsonl", "limit": limit})

    [line] = advise(raw, root)

    assert line.startswith(
        "calibrations.few0, calibrations.few1, calibrations.few2 and 1 more: 12 to 16 questions are "
        "too few to tell layers apart"
    )


def test_a_mixture_without_a_benchmark_of_its_own_gets_one_line_of_advice(root: Path) -> None:
    raw = set_key(minimal_config(), "studies.prune.calibrations", ["mixture"])
    set_key(raw, "benchmarks.tasks", {"mine": {"choices": "mine_test.jsonl"}})

    [line] = advise(raw, root)

    assert "no benchmark measures 'mixture'" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("benchmarks.perplexity.book", {"text": "book.jsonl", "window": 2, "joined": ""}),
        ("calibrations.texts", {"text": "texts.jsonl", "documents": None}),
        ("studies.prune.calibrations", ["corpus"]),
        ("models.small", {"source": INSTRUCT_MODEL, "chat_template": True}),
        ("calibrations.recall.limit", 30),
    ],
)
def test_what_has_a_purpose_gets_no_advice(root: Path, key: str, value: object) -> None:
    assert advise(set_key(minimal_config(), key, value), root) == []


def test_a_base_model_with_a_template_gets_no_advice(root: Path) -> None:
    """Base models bring a chat template too."""
    (root / "small/chat_template.jinja").write_text("{{ messages }}")

    assert advise(minimal_config(), root) == []

"""What is allowed and says hardly anything is named in a line each; nothing is said of a sensible configuration."""

import json
from pathlib import Path

import pytest

from lamina_workflow.checks import load
from lamina_workflow.checks.advice import advise_on
from tests.given.configurations import (
    RawConfig,
    minimal_config,
    set_key,
    write_model_and_data,
    write_model_folder,
)

QUESTION = '{"query": "a", "choices": ["b", "c"], "gold": 0}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files with enough questions and documents."""
    folder = write_model_and_data(tmp_path)
    for name in ("mine.jsonl", "mine_test.jsonl"):
        lines = [QUESTION.replace('"a"', json.dumps(f"{name} {n}")) for n in range(40)]
        (folder / name).write_text("".join(lines))
    (folder / "texts.jsonl").write_text('{"text": "a b c"}\n' * 3)
    (folder / "book.jsonl").write_text('{"text": "a b c"}\n')
    return folder


def advice(raw: RawConfig, root: Path) -> list[str]:
    return advise_on(load.load_configuration(raw, root), root)


def test_a_sensible_configuration_is_run_without_a_word(root: Path) -> None:
    assert advice(minimal_config(), root) == []


ADVISED = [
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
    ("studies.prune.calibrations", ["mixture"], "no benchmark of this study belongs to 'mixture'"),
    ("studies.prune.tasks", ["mine"], "no benchmark of this study belongs to 'recall'"),
    ("models.small.source", "Small-1B-Instruct", "models.small.chat_template: "),
]


@pytest.mark.parametrize(("where", "value", "said"), ADVISED)
def test_what_says_hardly_anything_is_named_in_a_line(
    where: str, value: object, said: str, root: Path
) -> None:
    folder = write_model_folder(root / "Small-1B-Instruct", {"num_hidden_layers": 8})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    raw = set_key(minimal_config(), where, value)
    if where == "studies.prune.calibrations":
        raw["benchmarks"]["tasks"] = {"mine": {"choices": "mine_test.jsonl"}}
    lines = advice(raw, root)
    assert len(lines) == 1 and said in lines[0] and "\n" not in lines[0]


UNADVISED = [
    ("benchmarks.perplexity.book", {"text": "book.jsonl", "window": 2, "joined": ""}),
    ("calibrations.texts", {"text": "texts.jsonl", "documents": None}),
    ("studies.prune.calibrations", ["corpus"]),
    ("models.small.chat_template", True),
    ("calibrations.recall.limit", 30),
]


@pytest.mark.parametrize(("where", "value"), UNADVISED)
def test_what_has_a_purpose_is_run_without_a_word(where: str, value: object, root: Path) -> None:
    folder = write_model_folder(root / "Small-1B-Instruct", {"num_hidden_layers": 8})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    raw = set_key(
        set_key(minimal_config(), "models.small.source", "Small-1B-Instruct"), where, value
    )
    raw["models"]["small"]["chat_template"] = True
    assert advice(raw, root) == []


def test_a_base_model_with_a_template_is_run_without_a_word(root: Path) -> None:
    """Base models bring a chat template too."""
    (root / "small/chat_template.jinja").write_text("{{ messages }}")
    assert advice(minimal_config(), root) == []

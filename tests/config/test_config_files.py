"""What local files can tell is refused when the configuration is read, before the first job."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina_workflow.checks import files
from lamina_workflow.checks.load import load_configuration
from tests import ROOT
from tests.given.configurations import (
    RawConfig,
    minimal_config,
    set_key,
    write_model_and_data,
    write_model_folder,
)

QUESTION = {"query": "Blood is", "choices": ["red", "blue"], "gold": 0}
TEXT = {"text": "text.jsonl", "documents": None}
CONTEXT = 64  # tokens


def write_lines(file: Path, *lines: Any) -> None:
    file.write_text("\n".join(json.dumps(line) for line in lines))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workplace with a text of three documents and a model whose context is 64."""
    write_model_and_data(tmp_path)
    write_lines(tmp_path / "text.jsonl", {"text": "one"}, {"text": "two"}, {"text": "three"})
    shutil.rmtree(tmp_path / "small")
    write_model_folder(tmp_path / "small", {"num_hidden_layers": 8, "n_positions": CONTEXT})
    return tmp_path


def configure(changes: RawConfig | None = None) -> RawConfig:
    """A configuration that fits these files, with values replaced by their dotted keys."""
    raw = set_key(minimal_config(), "calibrations.corpus", {**TEXT, "length": CONTEXT})
    set_key(raw, "studies.maps.calibrations", ["recall", "corpus"])
    set_key(raw, "benchmarks.efficiency", {"prompt": 48, "generate": 16})
    for key, value in (changes or {}).items():
        set_key(raw, key, value)
    return raw


def refusal(root: Path, changes: RawConfig) -> str:
    """The message by which a configuration with these changes is refused."""
    with pytest.raises(LaminaError) as caught:
        load_configuration(configure(changes), root)
    return str(caught.value)


def test_a_configuration_that_fits_its_files_is_read(root: Path) -> None:
    load_configuration(configure(), root)


TOO_LONG = [
    (
        {
            "calibrations.long": {**TEXT, "length": 65},
            "selectors.best": {"strategy": "portfolio", "judge": "long"},
            "studies.prune.selectors": ["best"],
        },
        "calibrations.long.length: 65 tokens are more than the context of model 'small', 64.",
    ),
    (
        {"calibrations.corpus.length": 65},
        "calibrations.corpus.length: 65 tokens are more than the context of model 'small', 64."
        " Write at most 64",
    ),
    (
        {"benchmarks.perplexity.corpus_test.window": 65},
        "benchmarks.perplexity.corpus_test.window: 65 tokens are more than the context of model"
        " 'small', 64. Write at",
    ),
    (
        {"benchmarks.efficiency": {"prompt": 49, "generate": 16}},
        "benchmarks.efficiency: a prompt of 49 and 16 generated tokens are more than the context"
        " of model 'small', 64. Write `efficiency: {prompt: 48, generate: 16}`.",
    ),
    (
        {"benchmarks.efficiency": {"prompt": [16, 49, 32], "generate": 16}},
        "benchmarks.efficiency: a prompt of 49 and 16 generated tokens are more than the context"
        " of model 'small', 64. Write `efficiency: {prompt: 48, generate: 16}`.",
    ),
    (
        {"benchmarks.efficiency": {}},
        "benchmarks.efficiency: a prompt of 64 and 32 generated tokens are more than the context"
        " of model 'small', 64. Write `efficiency: {prompt: 32, generate: 32}`.",
    ),
]


@pytest.mark.parametrize(("changes", "message"), TOO_LONG)
def test_what_is_longer_than_the_context_is_refused(
    root: Path, changes: RawConfig, message: str
) -> None:
    assert refusal(root, changes).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_position_embeddings": CONTEXT},
        {"n_ctx": CONTEXT},
        {"text_config": {"max_position_embeddings": CONTEXT}},
    ],
)
def test_the_context_comes_from_the_models_config(root: Path, settings: RawConfig) -> None:
    (root / "small/config.json").write_text(json.dumps({"num_hidden_layers": 8, **settings}))

    message = refusal(root, {"calibrations.corpus.length": 65})

    assert "the context of model 'small', 64" in message


def test_a_model_whose_config_names_no_context_is_not_refused(root: Path) -> None:
    (root / "small/config.json").write_text(json.dumps({"num_hidden_layers": 8}))

    load_configuration(configure({"calibrations.corpus.length": 65}), root)


RANGES = [
    (
        "calibrations.corpus",
        "0:900",
        '"0:900" asks for more than the 3 documents of',
        '/text.jsonl. Write "0:3", or null',
    ),
    ("calibrations.corpus", "2:4", '"2:4" asks', 'Write "2:3"'),
    ("calibrations.corpus", "3:", '"3:" asks', 'Write "0:3"'),
    ("calibrations.corpus", "30:10", '"30:10" holds no document', '"10:30"'),
    ("benchmarks.perplexity.corpus_test", "1:5", '"1:5" asks', 'Write "1:3"'),
]


@pytest.mark.parametrize(("key", "documents", "fault", "remedy"), RANGES)
def test_ranges_beyond_a_file_are_refused(
    root: Path, key: str, documents: str, fault: str, remedy: str
) -> None:
    changes = {f"{key}.text": "text.jsonl", f"{key}.documents": documents}
    if key.startswith("benchmarks"):
        # The calibration may not have the same documents.
        changes["calibrations.corpus.documents"] = "0:1"

    message = refusal(root, changes)

    assert message.startswith(f"{key}.documents: {fault}")
    assert remedy in message


@pytest.mark.parametrize("key", ["calibrations.corpus", "benchmarks.perplexity.corpus_test"])
def test_texts_that_cannot_be_read_are_refused(root: Path, key: str) -> None:
    """In the words of tests/data/test_data_files.py."""
    (root / "latin.txt").write_bytes(b"caf\xe9")

    message = refusal(root, {f"{key}.text": "latin.txt"})

    fault = f"{root}/latin.txt, line 1: not UTF-8 (byte 0xe9). Save the file"
    assert message.startswith(f"{key}.text: {fault}")


@pytest.mark.parametrize("key", ["calibrations.mine", "benchmarks.tasks.mine"])
def test_lines_that_are_no_questions_are_refused(root: Path, key: str) -> None:
    write_lines(root / "new.jsonl", QUESTION, QUESTION | {"gold": 0.0})

    message = refusal(root, {f"{key}.choices": "new.jsonl"})

    fault = f"{root}/new.jsonl, line 2: gold is 0.0, not a whole number"
    assert message.startswith(f"{key}.choices: {fault}")


@pytest.fixture
def five_questions(root: Path) -> Path:
    write_lines(root / "new.jsonl", *[QUESTION] * 5)
    return root


def test_as_many_questions_as_a_file_has_are_read(five_questions: Path) -> None:
    entry = {"choices": "new.jsonl", "limit": 5, "num_fewshot": 4}

    load_configuration(configure({"calibrations.mine": entry}), five_questions)


def test_more_questions_than_a_file_has_are_refused(five_questions: Path) -> None:
    entry = {"choices": "new.jsonl", "limit": 6}

    assert refusal(five_questions, {"calibrations.mine": entry}) == (
        "calibrations.mine.limit: 6 samples are asked for, but 'new.jsonl' has only 5."
        " Write at most 5, or leave it out."
    )


@pytest.mark.parametrize("key", ["calibrations.mine", "benchmarks.tasks.mine"])
def test_more_examples_than_a_file_has_other_questions_are_refused(
    five_questions: Path, key: str
) -> None:
    message = refusal(five_questions, {key: {"choices": "new.jsonl", "num_fewshot": 5}})

    fault = "5 examples cannot be drawn from the other 4 questions"
    assert message.startswith(f"{key}.num_fewshot: {fault}")


def test_a_split_that_the_embedded_corpus_lacks_is_refused(root: Path) -> None:
    shutil.copytree(ROOT / "resources/reference/data", root / "resources/reference/data")
    corpus = {"text": "microworld_corpus", "split": "dev", "length": CONTEXT}

    assert refusal(root, {"calibrations.corpus": corpus}) == (
        "calibrations.corpus.split: microworld_corpus has no split 'dev'."
        " Write train or validation."
    )


@pytest.fixture
def weights_file(root: Path) -> Path:
    """The weights of the embedded model, which the configuration names."""
    settings = {"num_hidden_layers": 12, "n_positions": CONTEXT}
    (root / "small/config.json").write_text(json.dumps(settings))
    weights = ROOT / "resources/reference/model.safetensors"
    return Path(shutil.copy(weights, root / "small/model.safetensors"))


def test_complete_weights_are_read(root: Path, weights_file: Path) -> None:
    load_configuration(configure(), root)


def test_weights_that_are_cut_off_are_refused(root: Path, weights_file: Path) -> None:
    weights_file.write_bytes(weights_file.read_bytes()[:-7])

    message = refusal(root, {})

    assert message.startswith("models.small.source: ")
    assert "model.safetensors is not a complete" in message


@pytest.mark.parametrize("content", [b"[]", b'"a"', b"{", b"\xff"])
def test_a_config_that_holds_no_settings_is_refused(root: Path, content: bytes) -> None:
    (root / "small/config.json").write_bytes(content)

    message = refusal(root, {})

    assert message.startswith("models.small.source: 'small/config.json' is not JSON ")
    assert "Restore the file" in message


def test_large_files_are_not_checked_before_the_jobs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST", 10)
    (root / "mine.jsonl").write_text("no question, and long enough")

    load_configuration(configure({"calibrations.corpus.documents": "0:900"}), root)


def test_a_file_of_several_entries_is_read_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_read: list[Path] = []
    read_documents = files.read_documents

    def record_and_read(file: Path, *arguments: Any) -> Any:
        files_read.append(file)
        return read_documents(file, *arguments)

    monkeypatch.setattr(files, "read_documents", record_and_read)
    heldout = {"text": "text.jsonl", "documents": "2:3", "window": CONTEXT}
    changes = {
        "calibrations.corpus.documents": "0:1",
        "calibrations.again": {**TEXT, "documents": "0:2"},
        "benchmarks.perplexity.corpus_test": heldout,
    }

    load_configuration(configure(changes), root)

    assert files_read == [root / "text.jsonl"]

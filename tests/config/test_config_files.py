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

GOOD = {"query": "Blood is", "choices": ["red", "blue"], "gold": 0}
TEXT = {"text": "text.jsonl", "documents": None}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workplace with a text of three documents and a model whose context is 64."""
    write_model_and_data(tmp_path)
    (tmp_path / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": f"document {n}"}) for n in range(3))
    )
    shutil.rmtree(tmp_path / "small")
    write_model_folder(tmp_path / "small", {"num_hidden_layers": 8, "n_positions": 64})
    return tmp_path


def raw(**changes: Any) -> RawConfig:
    """A configuration that fits, with dotted places (dots written __) replaced."""
    config = set_key(minimal_config(), "calibrations.corpus", {**TEXT, "length": 64})
    set_key(config, "studies.maps.calibrations", ["recall", "corpus"])
    set_key(config, "benchmarks.efficiency", {"prompt": 48, "generate": 16})
    for where, value in changes.items():
        set_key(config, where.replace("__", "."), value)
    return config


def refusal(root: Path, **changes: Any) -> str:
    assert load_configuration(raw(), root), "what is not changed must fit"
    with pytest.raises(LaminaError) as caught:
        load_configuration(raw(**changes), root)
    return str(caught.value)


TOO_LONG = [
    (
        {
            "calibrations__long": {**TEXT, "length": 65},
            "selectors__best": {"strategy": "portfolio", "judge": "long"},
            "studies__prune__selectors": ["best"],
        },
        "calibrations.long.length: 65 tokens are more than the context of model 'small', 64.",
    ),
    (
        {"calibrations__corpus__length": 65},
        "calibrations.corpus.length: 65 tokens are more than the context of model 'small', 64. Write at most 64",
    ),
    (
        {"benchmarks__perplexity__corpus_test__window": 65},
        "benchmarks.perplexity.corpus_test.window: 65 tokens are more than the context of model 'small', 64. Write at",
    ),
    (
        {"benchmarks__efficiency": {"prompt": 49, "generate": 16}},
        "benchmarks.efficiency: a prompt of 49 and 16 generated tokens are more than the context of model 'small', 64. "
        "Write `efficiency: {prompt: 48, generate: 16}`.",
    ),
    (
        {"benchmarks__efficiency": {}},
        "benchmarks.efficiency: a prompt of 64 and 32 generated tokens are more than the context of model 'small', 64. "
        "Write `efficiency: {prompt: 32, generate: 32}`.",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), TOO_LONG, ids=[next(iter(case[0])) for case in TOO_LONG]
)
def test_what_is_longer_than_the_context_is_refused(
    root: Path, changes: RawConfig, message: str
) -> None:
    assert refusal(root, **changes).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_position_embeddings": 64},
        {"n_ctx": 64},
        {"text_config": {"max_position_embeddings": 64}},
        {},
    ],
)
def test_the_context_stands_in_the_models_config(root: Path, settings: RawConfig) -> None:
    """Where it says none, nothing is known before the jobs; nor is it of a hub model."""
    (root / "small/config.json").write_text(json.dumps({"num_hidden_layers": 8, **settings}))
    longer = raw(calibrations__corpus__length=65)
    if settings:
        with pytest.raises(LaminaError, match="the context of model 'small', 64"):
            load_configuration(longer, root)
    else:
        assert load_configuration(longer, root)


RANGES = [
    (
        "calibrations.corpus",
        "0:900",
        '"0:900" asks for more than',
        '/text.jsonl holds, 3. Write "0:3", or null',
    ),
    ("calibrations.corpus", "2:4", '"2:4" asks', 'Write "2:3"'),
    ("calibrations.corpus", "3:", '"3:" asks', 'Write "0:3"'),
    ("calibrations.corpus", "30:10", '"30:10" holds no document', '"10:30"'),
    ("benchmarks.perplexity.corpus_test", "1:5", '"1:5" asks', 'Write "1:3"'),
]


@pytest.mark.parametrize(("where", "documents", "fault", "remedy"), RANGES)
def test_ranges_beyond_a_file_are_refused(
    root: Path, where: str, documents: str, fault: str, remedy: str
) -> None:
    changes = {
        f"{where}.text".replace(".", "__"): "text.jsonl",
        f"{where}.documents".replace(".", "__"): documents,
    }
    if where.startswith("benchmarks"):
        changes["calibrations__corpus__documents"] = "0:1"
    message = refusal(root, **changes)
    assert message.startswith(f"{where}.documents: {fault}") and remedy in message, message


@pytest.mark.parametrize("where", ["calibrations.corpus", "benchmarks.perplexity.corpus_test"])
def test_texts_of_another_form_are_refused(root: Path, where: str) -> None:
    """In the words of tests/data/test_data_files.py, as are questions."""
    (root / "a.txt").write_bytes(b"caf\xe9")
    message = refusal(root, **{f"{where}.text".replace(".", "__"): "a.txt"})
    assert message.startswith(
        f"{where}.text: {root}/a.txt, line 1: not UTF-8 (byte 0xe9). Save the file"
    ), message


@pytest.mark.parametrize("where", ["calibrations.mine", "benchmarks.tasks.mine"])
def test_lines_that_are_no_questions_are_refused(root: Path, where: str) -> None:
    (root / "new.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"gold": 0.0}))
    message = refusal(root, **{f"{where}.choices".replace(".", "__"): "new.jsonl"})
    assert message.startswith(
        f"{where}.choices: {root}/new.jsonl, line 2: gold is 0.0, not a whole number"
    ), message


def test_more_questions_than_a_file_has_are_refused(root: Path) -> None:
    (root / "new.jsonl").write_text(f"{json.dumps(GOOD)}\n" * 5)
    entry = {"choices": "new.jsonl"}
    assert load_configuration(raw(calibrations__mine={**entry, "limit": 5, "num_fewshot": 4}), root)
    message = refusal(root, calibrations__mine={**entry, "limit": 6})
    assert message == (
        "calibrations.mine.limit: 6 samples are asked for, and 'new.jsonl' has 5. Write at most 5, or leave it out."
    )
    for where, section in (
        ("calibrations.mine", "calibrations__mine"),
        ("benchmarks.tasks.mine", "benchmarks__tasks"),
    ):
        given = {**entry, "num_fewshot": 5}
        message = refusal(
            root, **{section: given if section == "calibrations__mine" else {"mine": given}}
        )
        assert message.startswith(
            f"{where}.num_fewshot: 5 examples are more than the other 4 questions"
        ), message


def test_a_split_that_the_embedded_corpus_lacks_is_refused(root: Path) -> None:
    shutil.copytree(ROOT / "resources/reference/data", root / "resources/reference/data")
    changes = {"calibrations__corpus": {"text": "microworld_corpus", "split": "dev", "length": 64}}
    assert refusal(root, **changes) == (
        "calibrations.corpus.split: microworld_corpus has no split 'dev'. Write train or validation."
    )


def test_cut_off_weights_are_refused(root: Path) -> None:
    shutil.copy(ROOT / "resources/reference/model.safetensors", root / "small/model.safetensors")
    (root / "small/config.json").write_text('{"num_hidden_layers": 12, "n_positions": 64}')
    assert load_configuration(raw(), root)
    data = (root / "small/model.safetensors").read_bytes()
    (root / "small/model.safetensors").write_bytes(data[:-7])
    with pytest.raises(
        LaminaError, match=r"^models.small.source: .*model.safetensors is not a complete"
    ):
        load_configuration(raw(), root)


@pytest.mark.parametrize("text", ["[]", '"a"', "{", "\xff"])
def test_a_config_that_holds_no_settings_is_refused(root: Path, text: str) -> None:
    (root / "small/config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(
        LaminaError,
        match=r"^models.small.source: 'small/config.json' is not JSON .*Restore the file",
    ):
        load_configuration(raw(), root)


def test_large_files_are_left_to_the_jobs(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "LARGEST", 10)
    (root / "mine.jsonl").write_text("no question, and long enough")
    assert load_configuration(raw(calibrations__corpus__documents="0:900"), root)


def test_a_file_of_several_entries_is_read_once(root: Path, monkeypatch: Any) -> None:
    seen: list[Path] = []
    read = files.read_documents
    monkeypatch.setattr(
        files, "read_documents", lambda path, *rest: seen.append(path) or read(path, *rest)
    )
    config = raw(calibrations__again={**TEXT, "documents": "0:2"})
    set_key(config, "calibrations.corpus.documents", "0:1")
    set_key(
        config,
        "benchmarks.perplexity.corpus_test",
        {"text": "text.jsonl", "documents": "2:3", "window": 64},
    )
    assert load_configuration(config, root) and seen == [root / "text.jsonl"]

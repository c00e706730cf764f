"""Calibrations as papers describe them, token by token beside short loaders of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lamina.data.calibrations import Sample
from lamina.data.prepare import prepare_calibration
from lamina.errors import LaminaError
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Calibration
from tests import ROOT
from tests.data.test_calibrations import ENTRY, REFERENCE

CORPUS = ROOT / "resources/reference/data/corpus_train.jsonl"
TOKENIZER = AutoTokenizer.from_pretrained(REFERENCE)


@pytest.fixture(scope="module")
def corpus_texts() -> list[str]:
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[:300]]


def draw_samples(root: Path, options: dict[str, Any]) -> list[Sample]:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    return prepare_calibration("c", Calibration.from_options(options), manifest, root).samples


def tokens_of(samples: list[Sample]) -> list[list[int]]:
    return [list(sample.sequence()) for sample in samples]


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_joined_documents_are_one_stream_in_windows(
    tmp_path: Path, corpus_texts: list[str]
) -> None:
    write_rows(tmp_path / "wiki", [{"text": text} for text in ["", *corpus_texts[:40], " "]])

    samples = draw_samples(
        tmp_path, {"hub": "wiki", "documents": None, "joined": "\n\n", "length": 100}
    )

    stream = TOKENIZER("\n\n".join(["", *corpus_texts[:40], " "]))["input_ids"]
    windows = [stream[start : start + 100] for start in range(0, len(stream), 100)]
    assert tokens_of(samples) == [window for window in windows if len(window) == 100]
    assert len({sample.document for sample in samples}) == len(samples)


def test_only_longer_documents_are_cropped(tmp_path: Path, corpus_texts: list[str]) -> None:
    write_rows(tmp_path / "c4", [{"text": text} for text in corpus_texts])
    lengths = [len(TOKENIZER(text)["input_ids"]) for text in corpus_texts]
    n_tokens = sorted(lengths)[len(lengths) // 2]
    options = {"documents": "2:7", "min_tokens": n_tokens, "length": n_tokens - 1}
    file = tmp_path / "c4/train.jsonl"

    samples = draw_samples(tmp_path, {"hub": "c4", **options})
    same_samples = draw_samples(tmp_path, {"text": str(file), **options})

    expected = []
    for text in corpus_texts:
        token_ids = TOKENIZER(text)["input_ids"]
        if len(token_ids) >= n_tokens:
            expected.append(token_ids[: n_tokens - 1])
    assert tokens_of(samples) == expected[2:7] == tokens_of(same_samples)


def test_a_template_joins_fields(tmp_path: Path, corpus_texts: list[str]) -> None:
    pairs = list(zip(corpus_texts[:20:2], corpus_texts[1:20:2], strict=True))
    write_rows(tmp_path / "alpaca", [{"instruction": a, "output": f"{{{b}}}"} for a, b in pairs])

    samples = draw_samples(
        tmp_path,
        {
            "hub": "alpaca",
            "template": "{instruction}\n\n{output}",
            "documents": "0:10",
            "length": 64,
        },
    )

    assert tokens_of(samples) == [TOKENIZER(f"{a}\n\n{{{b}}}")["input_ids"][:64] for a, b in pairs]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"template": "no field"}, "template: .*names of fields in braces"),
        ({"template": "{0}"}, "has no text '0'. Its fields are text"),
        ({"template": "{a.b}"}, "template: .*names of fields in braces"),
        ({"template": "{"}, "template: .*names of fields in braces"),
        ({"template": "{story}"}, "has no text 'story'. Its fields are text"),
        ({"joined": "", "length": 100000}, "length"),
        ({"min_tokens": 5000}, "no document of at least `min_tokens` tokens"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, corpus_texts: list[str], change: dict[str, Any], words: str
) -> None:
    write_rows(tmp_path / "c4", [{"text": text} for text in corpus_texts[:9]])
    with pytest.raises(LaminaError, match=words):
        draw_samples(tmp_path, {"hub": "c4", "documents": None, "length": 16, **change})

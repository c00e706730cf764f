"""Data sets of the hub, read from local folders of the same form, and calibrations mixed from tasks and texts."""

import gzip
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from lamina.data import documents, prepare
from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.data.overlap import document_hash
from lamina.data.prepare import prepare_calibration
from lamina.errors import LaminaError
from lamina.models.manifest import describe_model
from lamina.options import calibrations
from lamina.options.calibrations import Hub
from lamina_workflow.checks import load
from lamina_workflow.stages.prepare import PrepareCalibration, calibration_files
from tests.data.test_calibrations import ENTRY, REFERENCE, ROOT
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards

TEXTS = [f"text number {number}" for number in range(6)]


def c4(root: Path) -> dict[str, Any]:
    """As allenai/c4 has it: lines of JSON, compressed, a folder for each configuration, named in the card."""
    for split in ("train", "validation"):
        beside = {"timestamp": "2019-04-25T12:57:54Z", "url": "u"}
        lines = [json.dumps({"text": f"{split} {text}"} | beside) for text in TEXTS]
        file = root / f"c4/en/c4-{split}.00000-of-00001.json.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
    files = [
        {"split": split, "path": f"en/c4-{split}.*.json.gz"} for split in ("train", "validation")
    ]
    card = json.dumps({"configs": [{"config_name": "en", "data_files": files}]})
    (root / "c4/README.md").write_text(f"---\n{card}\n---\n")
    return {"hub": "c4", "name": "en", "documents": "1:4"}


def wikitext(root: Path) -> dict[str, Any]:
    """As Salesforce/wikitext has it: Parquet of lines, of which many are empty."""
    rows = pa.table({"text": [line for text in TEXTS for line in ("", f" {text} \n")]})
    (root / "wiki").mkdir()
    pq.write_table(rows, root / "wiki/train-00000-of-00001.parquet")
    return {"hub": "wiki", "documents": "2:6"}


def lima(root: Path) -> dict[str, Any]:
    """As GAIR/lima has it: conversations as lists of turns; here as the Arrow files of a cache."""
    turns = [[f"ask {text}", f"answer {text}"] for text in TEXTS]
    rows = pa.table({"conversations": turns, "source": ["s"] * len(TEXTS)})
    (root / "lima").mkdir()
    with (
        pa.OSFile(str(root / "lima/train.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, rows.schema) as writer,
    ):
        writer.write_table(rows)
    return {"hub": "lima", "field": "conversations", "documents": None}


def chat(root: Path) -> dict[str, Any]:
    """Turns that say whose they are."""
    asked = {"role": "user", "content": "a"}
    lines = [json.dumps({"messages": [asked, {"from": "gpt", "value": text}]}) for text in TEXTS]
    (root / "chat").mkdir()
    (root / "chat/train.jsonl").write_text("\n".join(lines))
    return {"hub": "chat", "field": "messages", "documents": "0:2"}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (c4, [f"train {text}" for text in TEXTS[1:4]]),
        (wikitext, [f" {text} \n" for text in TEXTS[2:6]]),
        (lima, [f"ask {text}\n\nanswer {text}" for text in TEXTS]),
        (chat, [f"a\n\n{text}" for text in TEXTS[:2]]),
    ],
)
def test_local_folders_are_read_as_data_sets(
    tmp_path: Path, made: Any, expected: list[str], streaming: bool
) -> None:
    """Streamed whatever is asked: `datasets` would keep another folder of that name."""
    entry = calibrations.Calibration.from_options(made(tmp_path) | {"streaming": streaming})
    assert (
        isinstance(entry, Hub) and documents.read_hub(entry, tmp_path, "calibrations.x") == expected
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "de"}, ["calibrations.x.hub", "'c4'", "Available: ['en']"]),
        ({"split": "dev"}, ["calibrations.x.hub", "no split 'dev'", "['train', 'validation']"]),
        ({"field": "page"}, ["calibrations.x.field", "no text 'page'", "Its fields are text"]),
        (
            {"documents": "4:9"},
            ["calibrations.x.documents", '"4:9" asks for more than c4 holds, 6'],
        ),
        ({"documents": "7:9"}, ["calibrations.x.documents", "asks for more than c4 holds"]),
    ],
)
def test_what_a_data_set_lacks_is_named(
    tmp_path: Path, changed: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(LaminaError) as refused:
        documents.read_hub(
            calibrations.Calibration.from_options(c4(tmp_path) | changed),
            tmp_path,
            "calibrations.x",
        )  # type: ignore[arg-type]
    assert all(word in str(refused.value) for word in words), refused.value


def write(root: Path, **rows: list[Any]) -> Hub:
    """A folder of .jsonl files by their names, without a card."""
    for name, listed in rows.items():
        (root / "own").mkdir(exist_ok=True)
        (root / f"own/{name}.jsonl").write_text("\n".join(map(json.dumps, listed)))
    entry = calibrations.Calibration.from_options({"hub": "own", "documents": None})
    assert isinstance(entry, Hub)
    return entry


def read(entry: Hub, root: Path) -> list[str]:
    return documents.read_hub(entry, root, "calibrations.x")


def test_file_names_say_splits_only_if_all_of_them_do(tmp_path: Path) -> None:
    """`steam-train` is a file among others, and `stress_test` is one too."""
    texts = {
        name: [{"text": f"{name} {n}"} for n in range(3)]
        for name in ("ballet", "steam-train", "stress_test")
    }
    assert len(read(write(tmp_path, **texts), tmp_path)) == 9
    shutil.rmtree(tmp_path / "own")
    named = {
        "part-train-1": texts["ballet"],
        "part-test-1": texts["stress_test"],
        "train-2": texts["steam-train"],
    }
    entry = write(tmp_path, **named)
    assert read(entry, tmp_path) == [row["text"] for row in texts["ballet"] + texts["steam-train"]]
    with pytest.raises(
        LaminaError,
        match="calibrations.x.hub: 'own': its files are named after test, train.*'valid",
    ):
        read(entry.model_copy(update={"split": "validation"}), tmp_path)
    shutil.rmtree(tmp_path / "own")
    with pytest.raises(
        LaminaError, match="its files are named after test, and none after 'train'. Name them oth"
    ):
        read(write(tmp_path, stress_test=texts["ballet"]), tmp_path)


def test_files_are_read_whatever_the_case_of_their_names_and_the_length_of_their_fields(
    tmp_path: Path,
) -> None:
    entry, long = write(tmp_path, a=[{"text": "one"}]), "word " * 40_000
    (tmp_path / "own/b.JSONL").write_text('{"text": "two"}')
    (tmp_path / "own/c.jsonl").write_text("\n")
    assert read(entry, tmp_path) == ["one", "two"]
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/a.csv").write_text(f"id,text\n1,{long}\n")
    assert read(entry, tmp_path) == [long]
    (tmp_path / "own/a.csv").write_text("")
    with pytest.raises(LaminaError, match="calibrations.x.hub: 'own' holds no document"):
        read(entry, tmp_path)


def test_only_the_field_is_read(tmp_path: Path) -> None:
    """Other fields may be of several types, in one file and from file to file, or be missing."""
    entry = write(
        tmp_path,
        a=[
            {"text": "one", "id": 1, "meta": {"x": [1]}},
            {"text": "two", "id": "b"},
            {"id": [], "text": "three"},
        ],
        b=[{"text": "four", "meta": "none", "other": {}}],
    )
    (tmp_path / "own/c.json").write_text(json.dumps([{"text": "five"}, {"text": "six", "id": 2.5}]))
    (tmp_path / "own/LICENSE.txt").write_text("free")
    assert read(entry, tmp_path) == ["one", "two", "three", "four", "five", "six"]
    tables = [pa.table({"text": ["a", "b"], "id": [1, 2]}), pa.table({"id": ["x"], "text": ["c"]})]
    (tmp_path / "other").mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"other/{number}.parquet")
    assert read(entry.model_copy(update={"hub": "other"}), tmp_path) == ["a", "b", "c"]
    (tmp_path / "other/more.csv").write_text("id,text\n1,d\n")
    with pytest.raises(
        LaminaError, match="several kinds, such as 1.parquet and more.csv|0.parquet and more.csv"
    ):
        read(entry.model_copy(update={"hub": "other"}), tmp_path)
    for name in ("0", "1"):
        (tmp_path / f"other/{name}.parquet").unlink()
    assert read(entry.model_copy(update={"hub": "other"}), tmp_path) == ["d"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "calibrations.x.hub: .*own/a.jsonl, line 2: not JSON"),
        ("[1]", "own/a.jsonl, line 2: \\[1\\] is no object"),
        ('{"text": null}', "calibrations.x.field: 'text' of a document is null"),
        ('{"text": 3}', "no text 'text'. Its fields are text"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, line: str, words: str) -> None:
    entry = write(tmp_path, a=[{"text": "one"}])
    with (tmp_path / "own/a.jsonl").open("a") as file:
        file.write(f"\n{line}")
    with pytest.raises(LaminaError, match=words):
        read(entry, tmp_path)


def test_a_calibration_of_the_hub_is_samples_of_text(tmp_path: Path) -> None:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    words = json.loads((REFERENCE / "data/corpus_train.jsonl").read_text().splitlines()[0])["text"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.jsonl").write_text(
        "\n".join(json.dumps({"text": f"{words} {n}"}) for n in range(5))
    )
    entry = calibrations.Calibration.from_options({"hub": "own", "documents": "0:5", "length": 8})
    found = prepare_calibration("own", entry, manifest, tmp_path)
    assert (found.facts["kind"], found.facts["source"], found.facts["split"]) == (
        "text",
        "own",
        "train",
    )
    assert [len(sample.sequence()) for sample in found.samples] == [8] * 5
    assert found.samples[4].document == document_hash(f"{words} 4")


def test_an_id_needs_a_revision_and_folders_make_readers_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_model_and_data(tmp_path)
    with pytest.raises(LaminaError, match="calibrations.corpus.hub.*add `revision"):
        load.load_configuration(
            set_key(minimal_config(), "calibrations.corpus", {"hub": "allenai/c4"}), root
        )
    load.load_configuration(
        set_key(minimal_config(), "calibrations.corpus", {"hub": "allenai/c4", "revision": "main"}),
        root,
    )
    loaded = load.load_configuration(
        set_key(minimal_config(), "calibrations.corpus", c4(root)), root
    )
    monkeypatch.chdir(root)
    files = calibration_files(loaded, "corpus")
    assert "c4/README.md" in files and "c4/en/c4-train.00000-of-00001.json.gz" in files


SHARES = {"mixture": {"recall": 2, "sorting": 1, "corpus": 1}, "seed": 0}
MIXED = {
    "recall": {"task": "microworld_recall", "limit": 40, "seed": 0},
    "sorting": {"task": "microworld_sorting", "limit": 30, "seed": 0},
    "corpus": {"text": "microworld_corpus", "documents": "0:20", "length": 16},
}


ENTRIES = {name: calibrations.Calibration.from_options(options) for name, options in MIXED.items()}


@pytest.fixture(scope="module")
def parts() -> dict[str, CalibrationSamples]:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    return {
        name: prepare_calibration(name, entry, manifest, ROOT) for name, entry in ENTRIES.items()
    }


def mixed(parts: dict[str, CalibrationSamples], **changed: Any) -> list[Sample]:
    return prepare.mix_samples(
        "all", calibrations.Calibration.from_options(SHARES | changed), parts
    )  # type: ignore[arg-type]


def test_a_mixture_has_the_shares_of_its_weights(parts: dict[str, CalibrationSamples]) -> None:
    found = mixed(parts)  # the 40 of recall, of weight 2, allow 20 of each other one
    assert Counter(sample.kind for sample in found) == {"choices": 40, "generated": 20, "text": 20}
    assert [sample.index for sample in found] == list(range(80))
    few = mixed(parts, limit=10)
    assert Counter(sample.kind for sample in few) == {"choices": 5, "generated": 3, "text": 2}
    assert few == mixed(parts, limit=10) != mixed(parts, limit=10, seed=1)
    whole = {sample.document: sample.rows for part in parts.values() for sample in part.samples}
    assert all(whole[sample.document] == sample.rows for sample in found)


def test_a_mixture_is_prepared_from_its_parts(parts: dict[str, CalibrationSamples]) -> None:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    found = prepare_calibration(
        "all", calibrations.Calibration.from_options(SHARES), manifest, ROOT, ENTRIES
    )
    assert list(found.samples) == mixed(parts) and found.facts["kind"] == "mixed"
    assert found.facts["source"] == "microworld_recall,microworld_sorting,microworld_corpus"


def test_a_mixture_is_checked_and_measured_as_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_model_and_data(tmp_path)
    raw = set_key(minimal_config(), "calibrations.all", {"mixture": {"recall": 2, "corpus": "0.5"}})
    loaded = load.load_configuration(raw, root)
    assert loaded.own_tasks("all") == loaded.own_tasks("recall") != []
    jobs = {
        name: PrepareCalibration.of(loaded, make_wildcards(model="small", calibration=name))
        for name in ("all", "recall")
    }
    assert set(jobs["all"].parts) == {"recall", "corpus"} and jobs["recall"].parts == {}
    for part, words in (("corpsu", "Did you mean 'corpus'"), ("all", "is a mixture itself")):
        with pytest.raises(LaminaError, match=f"calibrations.all.mixture: '{part}'.*{words}"):
            load.load_configuration(set_key(raw, "calibrations.all.mixture", {part: 1}), root)


def test_the_examples_of_the_guide_are_calibrations() -> None:
    guide = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)]
    found = [entry for example in examples for entry in example.get("calibrations", {}).values()]
    assert len(found) == 10
    assert all(calibrations.Calibration.from_options(entry).options() for entry in found)

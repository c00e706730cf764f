"""Data sets of the hub, read from local folders of the same form, and mixed calibrations."""

import bz2
import gzip
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable
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
from lamina.options.calibrations import Calibration, Hub
from lamina_workflow.checks import load
from lamina_workflow.runtime import contents
from lamina_workflow.stages.prepare import PrepareCalibration, calibration_files
from tests import ROOT
from tests.data.test_calibrations import ENTRY, REFERENCE
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards

TEXTS = [f"text number {number}" for number in range(6)]


def write_c4(root: Path) -> dict[str, Any]:
    """As allenai/c4: compressed lines of JSON, a folder for each configuration, named in a card."""
    data_files = []
    for split in ("train", "validation"):
        lines = []
        for text in TEXTS:
            row = {"text": f"{split} {text}", "timestamp": "2019-04-25T12:57:54Z", "url": "u"}
            lines.append(json.dumps(row))
        file = root / f"c4/en/c4-{split}.00000-of-00001.json.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
        data_files.append({"split": split, "path": f"en/c4-{split}.*.json.gz"})
    card = json.dumps({"configs": [{"config_name": "en", "data_files": data_files}]})
    (root / "c4/README.md").write_text(f"---\n{card}\n---\n")
    return {"hub": "c4", "name": "en", "documents": "1:4"}


def write_wikitext(root: Path) -> dict[str, Any]:
    """As Salesforce/wikitext: Parquet of lines, of which many are empty."""
    lines = []
    for text in TEXTS:
        lines += ["", f" {text} \n"]
    (root / "wiki").mkdir()
    pq.write_table(pa.table({"text": lines}), root / "wiki/train-00000-of-00001.parquet")
    return {"hub": "wiki", "documents": "2:6"}


def write_lima(root: Path) -> dict[str, Any]:
    """As GAIR/lima: conversations as lists of turns, here in the Arrow files of a cache."""
    turns = [[f"ask {text}", f"answer {text}"] for text in TEXTS]
    rows = pa.table({"conversations": turns, "source": ["s"] * len(TEXTS)})
    (root / "lima").mkdir()
    with (
        pa.OSFile(str(root / "lima/train.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, rows.schema) as writer,
    ):
        writer.write_table(rows)
    return {"hub": "lima", "field": "conversations", "documents": None}


def write_chat(root: Path) -> dict[str, Any]:
    """Turns that say whose they are."""
    lines = []
    for text in TEXTS:
        turns = [{"role": "user", "content": "a"}, {"from": "gpt", "value": text}]
        lines.append(json.dumps({"messages": turns}))
    (root / "chat").mkdir()
    (root / "chat/train.jsonl").write_text("\n".join(lines))
    return {"hub": "chat", "field": "messages", "documents": "0:2"}


def hub_entry(options: dict[str, Any]) -> Hub:
    entry = Calibration.from_options(options)
    assert isinstance(entry, Hub)
    return entry


def read_hub(entry: Hub, root: Path) -> list[str]:
    return documents.read_hub(entry, root, "calibrations.x")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("write_folder", "expected_texts"),
    [
        (write_c4, [f"train {text}" for text in TEXTS[1:4]]),
        (write_wikitext, [f" {text} \n" for text in TEXTS[2:6]]),
        (write_lima, [f"ask {text}\n\nanswer {text}" for text in TEXTS]),
        (write_chat, [f"a\n\n{text}" for text in TEXTS[:2]]),
    ],
)
def test_local_folders_are_read_as_data_sets(
    tmp_path: Path,
    write_folder: Callable[[Path], dict[str, Any]],
    expected_texts: list[str],
    streaming: bool,
) -> None:
    """Always streamed: `datasets` would keep another folder of that name."""
    options = write_folder(tmp_path)
    entry = hub_entry(options | {"streaming": streaming})
    assert read_hub(entry, tmp_path) == expected_texts


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({"name": "de"}, ["calibrations.x.hub", "'c4'", "Available: ['en']"]),
        ({"split": "dev"}, ["calibrations.x.hub", "no split 'dev'", "['train', 'validation']"]),
        ({"field": "page"}, ["calibrations.x.field", "no text 'page'", "Its fields are text"]),
        (
            {"documents": "4:9"},
            ["calibrations.x.documents", '"4:9" asks for more than the 6 documents of c4'],
        ),
        (
            {"documents": "7:9"},
            ["calibrations.x.documents", '"7:9" asks for more than the 6 documents of c4'],
        ),
    ],
)
def test_what_a_data_set_lacks_is_named(
    tmp_path: Path, change: dict[str, Any], messages: list[str]
) -> None:
    entry = hub_entry(write_c4(tmp_path) | change)

    with pytest.raises(LaminaError) as refused:
        read_hub(entry, tmp_path)

    for message in messages:
        assert message in str(refused.value)


def write_jsonl(root: Path, **rows_by_name: list[Any]) -> Hub:
    """The folder `own` of .jsonl files by their names, without a card."""
    folder = root / "own"
    folder.mkdir(exist_ok=True)
    for name, rows in rows_by_name.items():
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return hub_entry({"hub": "own", "documents": None})


BALLET = [{"text": f"ballet {number}"} for number in range(3)]
STRESS = [{"text": f"stress {number}"} for number in range(3)]
STEAM = [{"text": f"steam {number}"} for number in range(3)]


def test_files_are_no_splits_if_some_of_their_names_are_none(tmp_path: Path) -> None:
    """`steam-train` is a file among others here, and so is `stress_test`."""
    files = {"ballet": BALLET, "steam-train": STEAM, "stress_test": STRESS}
    assert len(read_hub(write_jsonl(tmp_path, **files), tmp_path)) == 9


def test_files_are_splits_if_all_of_their_names_are(tmp_path: Path) -> None:
    files = {"part-train-1": BALLET, "part-test-1": STRESS, "train-2": STEAM}
    entry = write_jsonl(tmp_path, **files)

    assert read_hub(entry, tmp_path) == [row["text"] for row in BALLET + STEAM]
    message = "calibrations.x.hub: 'own': its files are named after test, train.*'valid"
    with pytest.raises(LaminaError, match=message):
        read_hub(entry.model_copy(update={"split": "validation"}), tmp_path)


def test_a_single_file_with_the_name_of_another_split_is_refused(tmp_path: Path) -> None:
    entry = write_jsonl(tmp_path, stress_test=BALLET)
    message = (
        "its files are named after test, and none after 'train'. Write one of these, or rename"
    )
    with pytest.raises(LaminaError, match=message):
        read_hub(entry, tmp_path)


def test_names_of_files_may_have_any_case(tmp_path: Path) -> None:
    entry = write_jsonl(tmp_path, a=[{"text": "one"}])
    (tmp_path / "own/b.JSONL").write_text('{"text": "two"}')
    (tmp_path / "own/c.jsonl").write_text("\n")
    assert read_hub(entry, tmp_path) == ["one", "two"]


def test_a_field_of_a_csv_file_may_be_long(tmp_path: Path) -> None:
    """Python's csv reader stops at 131,072 characters by default."""
    long_text = "word " * 40_000
    entry = write_jsonl(tmp_path)
    (tmp_path / "own/a.csv").write_text(f"id,text\n1,{long_text}\n")
    assert read_hub(entry, tmp_path) == [long_text]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    entry = write_jsonl(tmp_path)
    (tmp_path / "own/a.csv").write_text("")
    with pytest.raises(LaminaError, match="calibrations.x.hub: 'own' holds no document"):
        read_hub(entry, tmp_path)


def test_other_fields_of_json_may_have_any_type_or_be_missing(tmp_path: Path) -> None:
    """In one file and from file to file. A licence beside them is no document."""
    first_file = [
        {"text": "one", "id": 1, "meta": {"x": [1]}},
        {"text": "two", "id": "b"},
        {"id": [], "text": "three"},
    ]
    second_file = [{"text": "four", "meta": "none", "other": {}}]
    third_file = [{"text": "five"}, {"text": "six", "id": 2.5}]
    entry = write_jsonl(tmp_path, a=first_file, b=second_file)
    (tmp_path / "own/c.json").write_text(json.dumps(third_file))
    (tmp_path / "own/LICENSE.txt").write_text("free")

    assert read_hub(entry, tmp_path) == ["one", "two", "three", "four", "five", "six"]


def test_other_fields_of_parquet_may_have_any_type(tmp_path: Path) -> None:
    folder = tmp_path / "parquet"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a", "b"], "id": [1, 2]}), folder / "0.parquet")
    pq.write_table(pa.table({"id": ["x"], "text": ["c"]}), folder / "1.parquet")
    entry = hub_entry({"hub": "parquet", "documents": None})

    assert read_hub(entry, tmp_path) == ["a", "b", "c"]


def test_a_folder_with_files_of_several_kinds_is_refused(tmp_path: Path) -> None:
    entry = write_jsonl(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "own/0.parquet")
    (tmp_path / "own/more.csv").write_text("id,text\n1,d\n")
    with pytest.raises(LaminaError, match="several kinds, such as 0.parquet and more.csv"):
        read_hub(entry, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "calibrations.x.hub: .*own/a.jsonl, line 2: not JSON"),
        ("[1]", "own/a.jsonl, line 2: \\[1\\] is not an object"),
        ('{"text": null}', "calibrations.x.field: 'text' of a document is null"),
        ('{"text": 3}', "no text 'text'. Its fields are text"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, line: str, message: str) -> None:
    entry = write_jsonl(tmp_path, a=[{"text": "one"}])
    with (tmp_path / "own/a.jsonl").open("a") as file:
        file.write(f"\n{line}")

    with pytest.raises(LaminaError, match=message):
        read_hub(entry, tmp_path)


def compress_zstd(content: bytes) -> bytes:
    output = pa.BufferOutputStream()
    with pa.CompressedOutputStream(output, "zstd") as stream:
        stream.write(content)
    return output.getvalue().to_pybytes()


COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": compress_zstd,
}


@pytest.mark.parametrize("compression", list(COMPRESS))
def test_compressed_files_are_read_and_damaged_ones_named(tmp_path: Path, compression: str) -> None:
    """Of a damaged file, the second half is missing."""
    entry = write_jsonl(tmp_path, a=[{"text": f"{number} " * number} for number in range(1, 300)])
    plain = tmp_path / "own/a.jsonl"
    texts = read_hub(entry, tmp_path)
    content = COMPRESS[compression](plain.read_bytes())
    plain.unlink()
    file = tmp_path / f"own/a.jsonl.{compression}"
    file.write_bytes(content)

    assert read_hub(entry, tmp_path) == texts

    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(LaminaError, match=f"a.jsonl.{compression} cannot be read: .* Restore"):
        read_hub(entry, tmp_path)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("pretty_name: Foo: bar", "README.md.*`pretty_name: Foo: bar`: there is a colon where no"),
        ("configs:\n- train.jsonl", '`configs` in its README.md holds "train.jsonl"'),
        (
            "configs:\n- config_name: default\n  data_files:\n  - split: train",
            '`data_files` in its README.md holds {"split": "train"}',
        ),
    ],
)
def test_a_wrong_card_is_named(tmp_path: Path, card: str, message: str) -> None:
    entry = write_jsonl(tmp_path, train=[{"text": "one"}])
    (tmp_path / "own/README.md").write_text(f"---\n{card}\n---\n")

    with pytest.raises(LaminaError, match=message):
        read_hub(entry, tmp_path)


def test_a_calibration_of_the_hub_is_samples_of_text(tmp_path: Path) -> None:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    first_line = (REFERENCE / "data/corpus_train.jsonl").read_text().splitlines()[0]
    words = json.loads(first_line)["text"]
    write_jsonl(tmp_path, train=[{"text": f"{words} {number}"} for number in range(5)])
    entry = hub_entry({"hub": "own", "documents": "0:5", "length": 8})

    calibration = prepare_calibration("own", entry, manifest, tmp_path)

    assert calibration.facts["kind"] == "text"
    assert calibration.facts["source"] == "own"
    assert calibration.facts["split"] == "train"
    assert [len(sample.sequence()) for sample in calibration.samples] == [8] * 5
    assert calibration.samples[4].document == document_hash(f"{words} 4")


def test_an_id_of_the_hub_needs_a_revision(tmp_path: Path) -> None:
    root = write_model_and_data(tmp_path)
    corpus = {"hub": "allenai/c4"}
    raw_config = set_key(minimal_config(), "calibrations.corpus", corpus)

    with pytest.raises(LaminaError, match="calibrations.corpus.hub.*add `revision"):
        load.load_configuration(raw_config, root)
    set_key(raw_config, "calibrations.corpus.revision", "main")
    load.load_configuration(raw_config, root)


def test_editing_a_folder_makes_its_readers_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_model_and_data(tmp_path)
    raw_config = set_key(minimal_config(), "calibrations.corpus", write_c4(root))
    config = load.load_configuration(raw_config, root)
    monkeypatch.chdir(root)

    files = calibration_files(config, "corpus")

    edited_files = {"c4/README.md", "c4/en/c4-train.00000-of-00001.json.gz"}
    assert edited_files <= set(files)
    hashes = contents.hash_files(files)
    for file in edited_files:
        with Path(file).open("ab") as opened:
            opened.write(b"more")
        assert contents.hash_files(files)[file] != hashes[file]


MIXTURE = {"mixture": {"recall": 2, "sorting": 1, "corpus": 1}, "seed": 0}
PART_ENTRIES = {
    "recall": Calibration.from_options({"task": "microworld_recall", "limit": 40, "seed": 0}),
    "sorting": Calibration.from_options({"task": "microworld_sorting", "limit": 30, "seed": 0}),
    "corpus": Calibration.from_options(
        {"text": "microworld_corpus", "documents": "0:20", "length": 16}
    ),
}


@pytest.fixture(scope="module")
def parts() -> dict[str, CalibrationSamples]:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    return {
        name: prepare_calibration(name, entry, manifest, ROOT)
        for name, entry in PART_ENTRIES.items()
    }


def mix(parts: dict[str, CalibrationSamples], **changes: Any) -> list[Sample]:
    entry = Calibration.from_options(MIXTURE | changes)
    return prepare.mix_samples("all", entry, parts)  # type: ignore[arg-type]


def count_kinds(samples: list[Sample]) -> Counter[str]:
    return Counter(sample.kind for sample in samples)


def test_a_mixture_has_the_shares_of_its_weights(parts: dict[str, CalibrationSamples]) -> None:
    """The 40 samples of recall, whose weight is 2, allow 20 of each other part."""
    samples = mix(parts)
    limited_samples = mix(parts, limit=10)

    assert count_kinds(samples) == {"choices": 40, "generated": 20, "text": 20}
    assert [sample.index for sample in samples] == list(range(80))
    assert count_kinds(limited_samples) == {"choices": 5, "generated": 3, "text": 2}


def test_a_mixture_is_drawn_by_its_seed(parts: dict[str, CalibrationSamples]) -> None:
    samples = mix(parts, limit=10)
    assert samples == mix(parts, limit=10)
    assert samples != mix(parts, limit=10, seed=1)


def test_samples_of_a_mixture_are_those_of_its_parts(
    parts: dict[str, CalibrationSamples],
) -> None:
    rows_by_document = {}
    for part in parts.values():
        for sample in part.samples:
            rows_by_document[sample.document] = sample.rows
    for sample in mix(parts):
        assert rows_by_document[sample.document] == sample.rows


def test_a_mixture_is_prepared_from_its_parts(parts: dict[str, CalibrationSamples]) -> None:
    manifest = describe_model("reference", ENTRY, REFERENCE)
    entry = Calibration.from_options(MIXTURE)

    calibration = prepare_calibration("all", entry, manifest, ROOT, PART_ENTRIES)

    assert list(calibration.samples) == mix(parts)
    assert calibration.facts["kind"] == "mixed"
    assert calibration.facts["source"] == "microworld_recall,microworld_sorting,microworld_corpus"


def test_a_mixture_is_measured_on_the_tasks_of_its_parts(tmp_path: Path) -> None:
    root = write_model_and_data(tmp_path)
    mixture = {"mixture": {"recall": 2, "corpus": "0.5"}}
    config = load.load_configuration(set_key(minimal_config(), "calibrations.all", mixture), root)

    mixture_job = PrepareCalibration.of(config, make_wildcards(model="small", calibration="all"))
    plain_job = PrepareCalibration.of(config, make_wildcards(model="small", calibration="recall"))

    assert config.own_tasks("all") == config.own_tasks("recall") != []
    assert set(mixture_job.parts) == {"recall", "corpus"}
    assert plain_job.parts == {}


@pytest.mark.parametrize(
    ("part", "message"), [("corpsu", "Did you mean 'corpus'"), ("all", "is a mixture itself")]
)
def test_a_mixture_of_what_is_no_part_is_refused(tmp_path: Path, part: str, message: str) -> None:
    root = write_model_and_data(tmp_path)
    raw_config = set_key(minimal_config(), "calibrations.all", {"mixture": {part: 1}})
    with pytest.raises(LaminaError, match=f"calibrations.all.mixture: '{part}'.*{message}"):
        load.load_configuration(raw_config, root)


def test_the_examples_of_the_guide_are_calibrations() -> None:
    guide = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = []
    for example in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL):
        entries += yaml.safe_load(example).get("calibrations", {}).values()

    assert len(entries) == 13
    for entry in entries:
        assert Calibration.from_options(entry).options()

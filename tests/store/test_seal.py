"""A file that lamina wrote is read as what was written, or refused with its name and the remedy."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.repairs import patch
from lamina.selection import plans
from lamina.selection.plans import Plan
from lamina.store import parquet
from lamina.store.unfinished import Progress
from lamina_workflow.report import database
from tests.given import tiny
from tests.given.plausible_tables import write_study
from tests.given.variants import random_adapter

Reader = Callable[[], Any]
Writer = Callable[[Path], Reader]


def write_table(path: Path) -> Reader:
    generator = random.Random(1)
    columns = {
        "number": [generator.random() for _ in range(500)],
        "name": generator.choices(["a", "b", None], k=500),
    }
    parquet.write_table(path, pa.table(columns), {"seed": "3"})
    return lambda: (parquet.read_table(path).to_pylist(), parquet.read_metadata(path)["seed"])


def write_plan(path: Path) -> Reader:
    plan = Plan("m", "c", "s", 2, "accuracy", "iterative", "layer", ["9", "8"], [0.25, 0.5])
    plans.write_plan(path, plan)
    return lambda: plans.read_plan(path)


def write_patch(path: Path) -> Reader:
    operator = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    patch.write_patch(path, "ghost", {"removed=2/1-3/operator": operator}, {1: "no"})

    def read() -> Any:
        operators: dict[Any, Any] = {}
        for boundary, fitted in patch.read_patch(path, 2).items():
            operators[boundary] = (fitted.method, fitted.tensors["operator"].tolist())
        return operators, patch.patch_refusal(path, 1)

    return read


def write_calibration(path: Path) -> Reader:
    samples: list[Sample] = []
    for number in range(40):
        rows = (Row((1, 2), (number,), 3), Row((1, 2), (5,), 3))
        samples.append(Sample(number, "choice", 0, rows, str(number)))
    calibration = calibrations.build_calibration(samples, 60, source="x", split="train", seed=0)
    calibrations.write_calibration(path, calibration)
    return lambda: calibrations.read_calibration(path)


each_kind_of_file = pytest.mark.parametrize(
    "write", [write_table, write_plan, write_patch, write_calibration]
)


@each_kind_of_file
def test_no_flipped_bit_is_read_as_something_else(write: Writer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    read = write(file)
    expected = read()
    content = file.read_bytes()
    # Not of every seed: some bits of Parquet's footer have no checksum.
    generator = random.Random(9)
    n_refusals = 0
    for _ in range(300):
        flipped = bytearray(content)
        flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(flipped)
        try:
            assert read() == expected  # a bit of the digest's own name may be any
        except LaminaError as error:
            n_refusals += 1
            assert f"{file} is damaged" in str(error)
            assert "Delete it and run again" in str(error)
    assert n_refusals > 150


@each_kind_of_file
def test_a_file_that_is_cut_off_or_something_else_is_named(write: Writer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    read = write(file)
    content = file.read_bytes()
    cut_off = (b"", content[:1], content[: len(content) // 2], content[:-1])
    something_else = (b"[1, 2]\n", b"PAR1" * 9, b"\xff" * 99, b"[" * 9999)
    for damaged in cut_off + something_else:
        file.write_bytes(damaged)
        with pytest.raises(LaminaError, match="file is damaged: .* Delete it and run again"):
            read()


@each_kind_of_file
def test_the_same_content_is_the_same_file(write: Writer, tmp_path: Path) -> None:
    write(tmp_path / "first")
    write(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"first", "second"}


@each_kind_of_file
def test_files_follow_the_umask(write: Writer, tmp_path: Path) -> None:
    earlier_mask = os.umask(0o027)
    try:
        write(tmp_path / "file")
    finally:
        os.umask(earlier_mask)
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == "0o640"


def test_changed_settings_of_an_adapter_are_refused(tmp_path: Path) -> None:
    """PEFT reads rank and scale from them."""
    base = tiny.model()
    random_adapter(base, ["2", "3"], tmp_path)
    materialise(base, {"units": ["2", "3"]}, adapter=tmp_path)

    settings = tmp_path / "adapter_config.json"
    settings.write_text(settings.read_text().replace('"lora_alpha": ', '"lora_alpha": 1'))

    message = "is damaged: adapter_config.json is not what was written"
    with pytest.raises(LaminaError, match=message):
        materialise(base, {"units": ["2", "3"]}, adapter=tmp_path)


def test_changed_weights_of_an_adapter_are_refused(tmp_path: Path) -> None:
    base = tiny.model()
    random_adapter(base, ["2", "3"], tmp_path)

    weights = tmp_path / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 16
    weights.write_bytes(content)

    with pytest.raises(LaminaError, match="adapter_model.safetensors is damaged"):
        materialise(base, {"units": ["2", "3"]}, adapter=tmp_path)


def test_progress_is_read_as_it_was_kept(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.safetensors", "key")
    progress.save({"weight": torch.ones(3)}, {"step": 4})
    tensors, state = progress.load()
    assert torch.equal(tensors["weight"], torch.ones(3))
    assert state == {"step": 4}


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-2], lambda content: b"\x08" * 40],
    ids=["cut off", "something else"],
)
def test_damaged_progress_counts_as_none(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.safetensors", "key")
    progress.save({"weight": torch.ones(3)}, {"step": 4})
    progress.file.write_bytes(damage(progress.file.read_bytes()))
    assert progress.load() is None


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The tables of a study."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    return write_study(folder, n_layers=6, calibrations=("recall", "facts"), sizes=(1,), n_test=40)


def build_database(study: list[Path], name: str = "mine") -> None:
    database.build_database(study, "results/lamina.duckdb", name)


def connect_views(study: list[Path]) -> None:
    database.connect_views(study)


@pytest.mark.parametrize("read", [connect_views, build_database])
def test_duckdb_reads_no_table_that_is_damaged(
    study: list[Path], read: Callable[[list[Path]], None]
) -> None:
    """DuckDB itself checks nothing of the kind."""
    (file,) = [path for path in study if path.stem == "benchmarks"]
    content = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(LaminaError, match="benchmarks.parquet is damaged"):
        read(study)


def test_a_damaged_table_of_another_study_is_left_out_with_a_warning(
    study: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build_database(study, "other")
    table = Path("results/studies/other/plans.parquet")
    table.unlink()  # a link to the table of this study too
    table.write_bytes(b"no table")
    Path("results/studies/notes").mkdir()
    Path("results/studies/notes.txt").write_text("mine")

    build_database(study)

    assert "study 'other' is left out" in capsys.readouterr().err
    with duckdb.connect("results/lamina.duckdb", read_only=True) as connection:
        studies = connection.execute("SELECT DISTINCT study FROM studies.plans").fetchall()
    assert studies == [("mine",)]


def test_files_of_a_build_that_was_killed_are_removed(study: list[Path]) -> None:
    Path("results").mkdir()
    Path("results/.lamina.duckdb.1.tmp.wal").touch()
    build_database(study)
    assert list(Path("results").glob(".*")) == []


def test_a_damaged_database_is_refused(study: list[Path]) -> None:
    build_database(study)
    database.open_database("results/lamina.duckdb").close()
    Path("results/lamina.duckdb").write_bytes(b"\0" * 5000)
    with pytest.raises(LaminaError, match="lamina.duckdb is damaged.*Delete it and run again"):
        database.open_database("results/lamina.duckdb")

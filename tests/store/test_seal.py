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
from lamina.healing import lora
from lamina.models.materialise import materialise
from lamina.repair import patch
from lamina.selection import plans
from lamina.selection.plans import Plan
from lamina.store import parquet
from lamina.store.unfinished import Progress
from lamina_workflow.report import database
from tests import ROOT
from tests.given import tiny
from tests.given.plausible_tables import write_study
from tests.healing.examples import REPAIRED_UNITS

DRAW = random.Random(7)


def table(path: Path) -> Callable[[], Any]:
    draw = random.Random(1)
    columns = {
        "number": [draw.random() for _ in range(500)],
        "name": draw.choices(["a", "b", None], k=500),
    }
    parquet.write_table(path, pa.table(columns), {"seed": "3"})
    return lambda: (parquet.read_table(path).to_pylist(), parquet.read_metadata(path).get("seed"))


def plan(path: Path) -> Callable[[], Any]:
    plans.write_plan(
        path, Plan("m", "c", "s", 2, "accuracy", "iterative", "layer", ["9", "8"], [0.25, 0.5])
    )
    return lambda: plans.read_plan(path)


def repair(path: Path) -> Callable[[], Any]:
    tensors = {
        "removed=2/1-3/operator": torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    }
    patch.write_patch(path, "ghost", tensors, {1: "no"})
    return lambda: (
        [
            (at, fitted.method, fitted.tensors["operator"].tolist())
            for at, fitted in patch.read_patch(path, 2).items()
        ],
        patch.patch_refusal(path, 1),
    )


def samples(path: Path) -> Callable[[], Any]:
    rows = [
        Sample(n, "choice", 0, (Row((1, 2), (n,), 3), Row((1, 2), (5,), 3)), str(n))
        for n in range(40)
    ]
    calibrations.write_calibration(
        path, calibrations.build_calibration(rows, 60, source="x", split="train", seed=0)
    )
    return lambda: calibrations.read_calibration(path)


WRITTEN = [table, plan, repair, samples]


@pytest.mark.parametrize("write", WRITTEN)
def test_no_flipped_bit_is_read_as_something_else(write: Any, tmp_path: Path) -> None:
    read = write(tmp_path / "file")
    expected, whole = read(), (tmp_path / "file").read_bytes()
    refused = 0
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[DRAW.randrange(len(whole))] ^= 1 << DRAW.randrange(8)
        (tmp_path / "file").write_bytes(flipped)
        try:
            assert read() == expected  # a bit of the digest's own name may be any
        except LaminaError as error:
            refused += 1
            assert f"{tmp_path / 'file'} is damaged" in str(
                error
            ) and "Delete it and run again" in str(error)
    assert refused > 150


@pytest.mark.parametrize("write", WRITTEN)
def test_a_file_that_is_cut_off_or_something_else_is_named(write: Any, tmp_path: Path) -> None:
    read = write(tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    others = (b"[1, 2]\n", b"PAR1" * 9, b"\xff" * 99, b"[" * 9999)
    for content in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], *others):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(LaminaError, match="file is damaged: .* Delete it and run again"):
            read()


@pytest.mark.parametrize("write", WRITTEN)
def test_files_follow_the_umask_and_hold_nothing_that_changes(write: Any, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        for name in ("one", "other"):
            write(tmp_path / name)
    finally:
        os.umask(mask)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert oct((tmp_path / "one").stat().st_mode & 0o777) == "0o640"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_a_changed_adapter_is_refused(tmp_path: Path) -> None:
    """Its weights, and the settings beside them, whose rank and scale PEFT reads."""
    base, told = tiny.model(), {"units": REPAIRED_UNITS}
    healed = lora.prepare_training(materialise(base, told), lora.Lora())
    lora.save(healed, tmp_path)
    materialise(base, told, adapter=tmp_path)
    settings = (tmp_path / "adapter_config.json").read_text()
    (tmp_path / "adapter_config.json").write_text(
        settings.replace('"lora_alpha": ', '"lora_alpha": 1')
    )
    with pytest.raises(
        LaminaError, match="is damaged: adapter_config.json is not what was written"
    ):
        materialise(base, told, adapter=tmp_path)
    (tmp_path / "adapter_config.json").write_text(settings)
    weights = bytearray((tmp_path / "adapter_model.safetensors").read_bytes())
    weights[-5] ^= 16
    (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    with pytest.raises(LaminaError, match="adapter_model.safetensors is damaged"):
        materialise(base, told, adapter=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x08" * 40])
def test_a_damaged_progress_of_a_healing_counts_as_none(content: bytes, tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.safetensors", "key")
    progress.save({"weight": torch.ones(3)}, {"step": 4})
    found = progress.load()
    assert found is not None and found[1] == {"step": 4}
    progress.file.write_bytes(content or progress.file.read_bytes()[:-2])
    assert progress.load() is None


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    return write_study(
        tmp_path / "made", n_layers=6, calibrations=("recall", "facts"), sizes=(1,), n_test=40
    )


def test_duckdb_reads_no_table_that_is_damaged(study: list[Path]) -> None:
    """DuckDB itself checks nothing of the kind."""
    file = next(path for path in study if path.stem == "benchmarks")
    flipped, column = bytearray(file.read_bytes()), pq.read_metadata(file).row_group(0).column(0)
    flipped[column.data_page_offset + column.total_compressed_size // 2] ^= 4
    file.write_bytes(flipped)
    for ask in (
        database.connect_views,
        lambda *told: database.build_database(*told, "results/lamina.duckdb", "mine"),
    ):
        with pytest.raises(LaminaError, match="benchmarks.parquet is damaged"):
            ask(ROOT / "sql/views.sql", study)


def test_another_studys_damage_is_left_out_with_warning(
    study: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    database.build_database(ROOT / "sql/views.sql", study, "results/lamina.duckdb", "other")
    kept = Path("results/studies/other")
    (kept / "plans.parquet").unlink()  # a link to the table of this study too
    (kept / "plans.parquet").write_bytes(b"no table")
    Path("results/studies/notes").mkdir()
    Path("results/studies/notes.txt").write_text("mine")
    Path("results/.lamina.duckdb.1.tmp.wal").touch()  # of a build that was killed
    database.build_database(ROOT / "sql/views.sql", study, "results/lamina.duckdb", "mine")
    assert "study 'other' is left out" in capsys.readouterr().err
    with duckdb.connect("results/lamina.duckdb", read_only=True) as connection:
        assert connection.execute("SELECT DISTINCT study FROM studies.plans").fetchall() == [
            ("mine",)
        ]
    assert [path.name for path in Path("results").glob(".*")] == []


def test_a_damaged_database_is_not_advertised(study: list[Path]) -> None:
    database.build_database(ROOT / "sql/views.sql", study, "results/lamina.duckdb", "mine")
    database.open_database("results/lamina.duckdb").close()
    Path("results/lamina.duckdb").write_bytes(b"\0" * 5000)
    with pytest.raises(LaminaError, match="lamina.duckdb is damaged.*Delete it and run again"):
        database.open_database("results/lamina.duckdb")

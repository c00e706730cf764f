"""What one job proved of a model holds for the next, until anything changes on which it rests."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.config.models import Model
from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep as engine
from lamina.engine.capture import capture
from lamina.models import check as proof
from lamina.models import proven, remembered
from lamina.models.load import load_model
from lamina.models.manifest import describe, find_model
from tests.unit import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, in which a run has begun."""
    tiny.model("bloom").save_pretrained(tmp_path / "model")
    (tmp_path / ".snakemake").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def samples() -> list[Sample]:
    lines = [tuple(line) for line in tiny.tokens(2, 18).tolist()]
    return [Sample(n, "text", 0, (Row(line[:1], line[1:], 17),), str(n)) for n, line in enumerate(lines)]


def job(monkeypatch: pytest.MonkeyPatch, dtype: str = "float32", units: tuple[str, ...] = ("1",)) -> int:
    """How often a job that sweeps a model and captures its activations runs the plain model to prove something."""
    entry = Model(source="model", dtype=dtype)
    model = load_model(describe("mine", entry, find_model("mine", entry, Path.cwd())))
    runs, plain = [], proof.logits

    def counted(*args: Any) -> torch.Tensor:
        runs.append(args)
        return plain(*args)

    with monkeypatch.context() as patched:
        patched.setattr(proof, "logits", counted)
        engine.sweep(model, samples(), list(units))
        capture(model, [sample.sequence() for sample in samples()])
    return len(runs)


def test_a_job_proves_only_what_no_other_has(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert job(monkeypatch) > 0
    caplog.clear()
    assert job(monkeypatch) == 0
    # What follows from the proof is said in each job's log.
    assert "one row per choice" in caplog.text
    halves = job(monkeypatch, units=("1.mlp",))
    assert halves > 0 and job(monkeypatch, units=("1.mlp",)) == 0
    assert job(monkeypatch, dtype="bfloat16") > 0


def test_another_weight_is_another_model(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job(monkeypatch) > 0
    tiny.model("bloom", seed=1).save_pretrained(project / "model")
    assert job(monkeypatch) > 0


def test_a_memory_that_is_damaged_is_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job(monkeypatch) > 0
    for file in remembered.FOLDER.iterdir():
        file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert job(monkeypatch) > 0


def test_without_a_run_nothing_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".snakemake").rmdir()
    assert job(monkeypatch) > 0 and job(monkeypatch) > 0
    assert [path.name for path in project.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "name", ["models/surgery", "models/structure", "models/cutting", "models/proof", "sweep/proof", "sweep/forking"]
)
def test_no_memory_outlives_an_edit(name: str, tmp_path: Path) -> None:
    library = tmp_path / "lamina"
    shutil.copytree(Path(proven.__file__).parents[1], library)
    before = proven.code_digest(library)
    proven.code_digest.cache_clear()
    assert proven.code_digest(library) == before
    with (library / f"{name}.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    proven.code_digest.cache_clear()
    assert proven.code_digest(library) != before

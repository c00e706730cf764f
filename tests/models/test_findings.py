"""What the check of a model found holds for the jobs that load it, until anything changes on which it rests."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.config.models import Model
from lamina.data.calibrations import Row, Sample
from lamina.engine import check
from lamina.engine import sweep as engine
from lamina.engine.capture import capture
from lamina.models import check as proof
from lamina.models.load import load_model
from lamina.models.manifest import describe, find_model
from lamina.store import parquet as store
from tests.given import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its check."""
    tiny.model("bloom").save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = load_model(manifest())
    check.check_model(model, 2048)
    store.write_json("check.json", proof.findings(model, manifest()))
    return tmp_path


def manifest(dtype: str = "float32") -> dict[str, Any]:
    entry = Model(source="model", dtype=dtype)
    return describe("mine", entry, find_model("mine", entry, Path.cwd()))


def samples() -> list[Sample]:
    lines = [tuple(line) for line in tiny.tokens(2, 18).tolist()]
    return [
        Sample(n, "text", 0, (Row(line[:1], line[1:], 17),), str(n)) for n, line in enumerate(lines)
    ]


def job(
    monkeypatch: pytest.MonkeyPatch, dtype: str = "float32", file: str | None = "check.json"
) -> int:
    """How often a job that sweeps a model and captures its activations runs the plain model to prove something."""
    model = load_model(manifest(dtype), check=file)
    runs, plain = [], proof.logits

    def counted(*args: Any) -> torch.Tensor:
        runs.append(args)
        return plain(*args)

    with monkeypatch.context() as patched:
        patched.setattr(proof, "logits", counted)
        engine.sweep(model, samples(), ["1"])
        capture(model, [sample.sequence() for sample in samples()])
    return len(runs)


def test_a_job_proves_only_what_the_check_has_not(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert job(monkeypatch, file=None) > 0
    caplog.clear()
    assert job(monkeypatch) == 0
    # What follows from the proof is said in each job's log.
    assert "one row per choice" in caplog.text
    assert job(monkeypatch, dtype="bfloat16") > 0


def test_another_weight_is_another_model(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.model("bloom", seed=1).save_pretrained(project / "model")
    assert job(monkeypatch) > 0


def test_a_finding_holds_for_shorter_texts_and_not_for_longer_ones() -> None:
    model = tiny.model()
    proof.note(model, "causal", True, 8)
    proof.note(model, "causal", True, 4)
    assert proof.finding(model, "causal", 8) and proof.finding(model, "causal", 9) is None

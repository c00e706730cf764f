"""What the check of a model found holds for jobs that load it, until its conditions change."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.engine import sweep
from lamina.engine.capture import capture_similarities
from lamina.engine.check import check_model
from lamina.models import check
from lamina.models.load import load_model
from lamina.models.manifest import describe_model, find_model
from lamina.options.models import Model
from lamina.store import parquet
from tests.given import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its check."""
    tiny.model("bloom").save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = load_model(describe_project())
    check_model(model, 2048)
    parquet.write_json("check.json", check.collect_findings(model, describe_project()))
    return tmp_path


def describe_project(dtype: str = "float32") -> dict[str, Any]:
    entry = Model(source="model", dtype=dtype)
    return describe_model("mine", entry, find_model("mine", entry, Path.cwd()))


def count_plain_runs(
    monkeypatch: pytest.MonkeyPatch, dtype: str = "float32", check_file: str | None = "check.json"
) -> int:
    """How often a job that sweeps a model and captures its activations runs the plain model.

    It does so only to check what no finding in the file says.
    """
    model = load_model(describe_project(dtype), check=check_file)
    samples = tiny.samples(tiny.tokens(2, 18).tolist())
    plain_runs: list[tuple[Any, ...]] = []
    compute_logits = check.last_logits

    def count_logits(*args: Any) -> torch.Tensor:
        plain_runs.append(args)
        return compute_logits(*args)

    with monkeypatch.context() as patched:
        patched.setattr(check, "last_logits", count_logits)
        sweep.sweep_units(model, samples, ["1"])
        capture_similarities(model, [sample.sequence() for sample in samples])
    return len(plain_runs)


def test_a_job_proves_only_what_the_check_has_not(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert count_plain_runs(monkeypatch, check_file=None) > 0
    caplog.clear()
    assert count_plain_runs(monkeypatch) == 0
    # What follows from the proof is said in each job's log.
    assert "one row per choice" in caplog.text


def test_another_dtype_is_proved_anew(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_plain_runs(monkeypatch, dtype="bfloat16") > 0


def test_another_weight_is_proved_anew(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.model("bloom", seed=1).save_pretrained(project / "model")
    assert count_plain_runs(monkeypatch) > 0


def test_a_finding_holds_for_shorter_texts_and_not_for_longer_ones() -> None:
    model = tiny.model()
    check.store_finding(model, "causal", True, 8)
    check.store_finding(model, "causal", True, 4)
    assert check.read_finding(model, "causal", 8)
    assert check.read_finding(model, "causal", 9) is None

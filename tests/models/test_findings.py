"""What the check of a model found holds for jobs that load it, until its conditions change."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.engine import sweep
from lamina.engine.capture import capture_similarities
from lamina.engine.check import LENGTH, check_model
from lamina.models import check, workload
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
    check_model(model)
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


def test_a_check_costs_few_passes_through_a_deep_model() -> None:
    """One pass of its longest text through all layers, and the others through five of them."""
    model = tiny.model(depth=24, max_position_embeddings=1024)
    workload.count_work(model)
    before = workload.done.layer_tokens

    check_model(model)

    n_passes = (workload.done.layer_tokens - before) / (24 * LENGTH)
    assert 1 < n_passes < 5


@pytest.mark.parametrize("depth", [1, 2, 4, 5, 6, 24, 61])
def test_long_texts_run_through_the_first_and_the_last_layer(depth: int) -> None:
    layers = check.long_text_layers(tiny.model(depth=depth))

    assert layers[0] == 0
    assert layers[-1] == depth - 1
    assert len(layers) == min(depth, 5)


def test_long_texts_run_through_a_layer_of_each_kind() -> None:
    """Only layer 7 of 24 sees all tokens."""
    layer_types = ["sliding_attention"] * 24
    layer_types[7] = "full_attention"
    model = tiny.model("gemma3_text", depth=24)
    model.config.layer_types = layer_types

    assert 7 in check.long_text_layers(model)

"""What `make plan` says of a study's cost: sizes and times with units, and sums that add up."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lamina.engine.session import Session
from lamina.errors import LaminaError
from lamina.store import parquet
from lamina_workflow.cost import forecast
from lamina_workflow.cost.forecast import Stage
from tests.given import tiny


@pytest.fixture
def cost_file(tmp_path: Path) -> str:
    """A study of one sweep."""
    stage = Stage(1, flops=5e12, disk=3e9)
    jobs = {"results/sweeps/a.parquet": {"layer_tokens": 100.0, "flops": stage.flops}}
    costs = {"stages": {"sweep": asdict(stage)}, "jobs": jobs, "notes": []}
    parquet.write_text(tmp_path / "cost.json", json.dumps(costs))
    return str(tmp_path / "cost.json")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores and no GPU, with known speed."""
    monkeypatch.setattr(forecast.devices, "list_devices", lambda environment: [])
    monkeypatch.setattr(forecast, "measure_rate", lambda results, n_cores, always: 5e10)
    monkeypatch.setattr(forecast, "measure_start", lambda: forecast.StartSeconds(4.0, 1.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def test_without_a_gpu_times_are_those_of_this_machine(
    cost_file: str, two_cores: None, capsys: pytest.CaptureFixture[str]
) -> None:
    forecast.main([cost_file, "--jobs", "11"])
    output = capsys.readouterr().out
    assert "1.67 min" in output
    assert "at 0.05 TFLOP/s, measured with the study's own model" in output
    assert "3 GB" in output
    # One sweep of 100 s; of 14 s of starts, two at a time.
    assert "11 jobs are left to run. They take about 1.78 min with 2 at a time." in output


def test_a_study_that_is_done_has_nothing_left(
    cost_file: str, two_cores: None, capsys: pytest.CaptureFixture[str]
) -> None:
    forecast.main([cost_file])
    assert "Nothing is left to run." in capsys.readouterr().out


def test_with_a_gpu_times_are_those_of_one_device(
    cost_file: str,
    two_cores: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(forecast.devices, "list_devices", lambda environment: ["0"])
    forecast.main([cost_file])
    assert "Times are for one device at 100 TFLOP/s" in capsys.readouterr().out


def test_the_speed_is_that_of_the_cores_of_a_job(
    cost_file: str, two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_with: list[int] = []

    def measure_rate(results: Path, n_cores: int, always: bool) -> float:
        measured_with.append(n_cores)
        return 5e10

    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr(forecast, "measure_rate", measure_rate)
    forecast.main([cost_file, "--cores", "4"])
    forecast.main([cost_file])
    assert measured_with == [4, 16]


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (0, ""),
        (6.55e4, "65.5 kB"),
        (2.5e5, "250 kB"),
        (1.61e8, "161 MB"),
        (9.996e8, "1 GB"),
        (1e10, "10 GB"),
    ],
)
def test_sizes_have_their_digits_and_a_unit(n_bytes: float, expected: str) -> None:
    assert forecast.format_bytes(n_bytes) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 s"),
        (5e-4, "< 0.01 s"),
        (7.25, "7.2 s"),
        (89, "89 s"),
        (90, "1.5 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
    ],
)
def test_times_have_their_digits_and_a_unit(seconds: float, expected: str) -> None:
    assert forecast.format_duration(seconds) == expected


def test_the_table_adds_up() -> None:
    stages = {
        "sweep": Stage(2, 1e6, 3.6e15, 5e6, 1.8e16, 3e9, 1e9),
        "heal": Stage(2, 1e6, 3.6e15, 5e6, 1.8e16, 2e7, 5e8),
    }
    lines = forecast.format_table(stages, 1e12, n_other_jobs=3, start_seconds=3600).splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert rows[-2:] == ["starts 3 60 min", "all 7 2e+06 7.2 3 h 11 h 3 GB 1.5 GB"]


def test_the_rate_is_that_of_a_sweep() -> None:
    """Of a model as small as can be; how fast it is, is the machine's."""
    model = tiny.model()
    n_parameters = sum(weight.numel() for weight in model.get_decoder().layers.parameters())
    manifest = {"n_layers": 5, "hidden_size": 32, "layer_parameters": n_parameters // 5}
    samples = tiny.samples(tiny.tokens(10, 12).tolist(), "choices", context=6)
    assert 0 < forecast.measure_sweep_rate(model, manifest, samples) < 1e15


def test_a_slow_machine_is_measured_on_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over all hundred of a real model on a busy processor would take minutes."""
    measured_numbers: list[int] = []
    measure = Session.measure

    def record(session: Session, numbers: Iterable[int], *arguments: Any) -> None:
        sample_numbers = list(numbers)
        measured_numbers.extend(sample_numbers)
        measure(session, sample_numbers, *arguments)

    monkeypatch.setattr(Session, "measure", record)
    monkeypatch.setattr(forecast, "MEASURED_SECONDS", 1e-9)
    manifest = {"n_layers": 5, "hidden_size": 32, "layer_parameters": 1}
    samples = tiny.samples(tiny.tokens(10, 12).tolist(), "choices", context=6)
    assert forecast.measure_sweep_rate(tiny.model(), manifest, samples) > 0
    assert measured_numbers == [0, 0, 1, 2, 3]  # the first one also to start with


def test_a_start_is_that_of_processes_that_import_what_jobs_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statements: list[str] = []

    def record(command: list[str], check: bool, start_new_session: bool) -> None:
        statements.append(command[-1])

    monkeypatch.setattr(forecast.subprocess, "run", record)
    start_seconds = forecast.measure_start()

    assert min(start_seconds) >= 0
    computing, light = [set(line.removeprefix("import ").split(", ")) for line in statements]
    assert light < computing
    for module_name in computing:
        assert find_spec(module_name)


@pytest.mark.parametrize("rate", ["abc", "0", "-3", "nan", "inf"])
def test_a_rate_that_no_device_has_is_refused_with_an_example(rate: str) -> None:
    with pytest.raises(LaminaError, match=f"RATE={rate}: .* such as RATE=100"):
        forecast.parse_rate(rate)


def test_a_rate_is_a_number_of_teraflops() -> None:
    assert forecast.parse_rate("2.5") == 2.5

"""What jobs ask of a machine."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.workflow import resources


class Inputs(dict[str, Any]):
    """As Snakemake hands them on: by attribute, and by key where they may be missing."""

    __getattr__ = dict.__getitem__


def manifest(folder: Path, **facts: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps({"dtype": "bfloat16", "parameters": 8_000_000_000, "weights_bytes": 1, **facts}))
    return path


@pytest.mark.parametrize(("dtype", "gb"), [("float32", 32.0), ("bfloat16", 16.0), ("float16", 16.0), ("auto", 7.0)])
def test_weights_count_in_the_type_they_are_loaded_with(tmp_path: Path, dtype: str, gb: float) -> None:
    assert resources.weights_gb(manifest(tmp_path, dtype=dtype, weights_bytes=7_000_000_000)) == gb


def test_a_job_asks_for_the_devices_that_hold_the_weights(tmp_path: Path) -> None:
    path = manifest(tmp_path)  # 16 GB
    assert [resources.devices("auto", path, size, None) for size in (80, 24, 16, 8)] == [1, 1, 2, 3]
    assert [resources.devices(4, path, 80, here) for here in (None, 8, 2, 0)] == [4, 4, 2, 1]


def test_a_later_attempt_asks_for_more(tmp_path: Path) -> None:
    inputs = Inputs(manifest=manifest(tmp_path))
    assert [resources.memory(None, inputs, attempt) for attempt in (1, 2)] == [35_000, 70_000]
    assert [resources.minutes(None, inputs, attempt) for attempt in (1, 3)] == [116, 348]


def test_time_grows_with_the_variants_that_a_benchmark_goes_through(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    assert resources.minutes(None, Inputs(manifest=path, variants=["a"] * 8), 1) == 20 + 6 * 16 * 3
    assert resources.minutes_of(8, path, 1) == 20 + 6 * 16 * 3


def test_a_fit_holds_its_maps_and_those_of_all_weights_that_are_tried(tmp_path: Path) -> None:
    """C² float32 numbers each, with and without the held-out samples: at C = 4096 67 MB."""
    path = manifest(tmp_path, hidden_size=4096)
    assert resources.fit_memory(3, False, path, 1) == 35_000 + round(2 * 3 * 4096**2 * 4 / 1e6)
    assert resources.fit_memory(3, True, path, 2) == 2 * 35_000 + round(2 * 14 * 3 * 4096**2 * 4 / 1e6)


def test_time_grows_with_the_models_that_a_sweep_draws(tmp_path: Path) -> None:
    path = manifest(tmp_path, n_layers=32)
    assert resources.drawn_minutes(20, 0, path, 1) == 20 + 21 * (1 + 6 * 16)
    assert resources.drawn_minutes(0, 64, path, 2) == 2 * (20 + 3 * (1 + 6 * 16))


def test_a_model_that_is_not_prepared_is_asked_for_again() -> None:
    with pytest.raises(FileNotFoundError):
        resources.memory(None, SimpleNamespace(manifest="results/models/none/manifest.json"), 1)


def test_two_jobs_share_the_cores_of_a_machine_and_a_cluster_has_its_own() -> None:
    assert [resources.threads(cores) for cores in (1, 2, 16)] == [1, 1, 8]
    assert resources.threads(16, alone=True) == 16
    assert resources.threads(None) == resources.threads(None, alone=True) == 4

"""A model that finds no room on its device goes through all stages, with the numbers of the undivided one."""

import json
from typing import Any

import pytest
import yaml

from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow

KEYS = {
    "activations": "layer, span",
    "sweeps": "selector, removed, unit, sample",
    "relevance": "selector, removed, metric, unit",
    "patches": "selector, removed, repair, boundary",
    "diagnoses": "diagnosis, layer, measure",
    "benchmarks": "selector, removed, repair, task, metric",
}
VARIANT = "reference/recall/accuracy/removed=1/ghost/none"


@pytest.fixture(scope="module")
def divided(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A part of the finished study with room for about five of twelve layers, and an export."""
    project = copy_project(tmp_path_factory.mktemp("divided"), "tests/configs/tiny.yaml")
    config = yaml.safe_load(project.config.read_text())
    config["calibrations"] = {"recall": config["calibrations"]["recall"]}
    del config["studies"]["heal"], config["benchmarks"]["perplexity"]
    config["studies"]["maps"] |= {"calibrations": ["recall"], "metrics": ["accuracy", "cosine"]}
    config["studies"]["prune"] |= {
        "calibrations": ["recall"],
        "selectors": ["accuracy"],
        "removed": [1],
        "tasks": "own",
    }
    project.config.write_text(yaml.safe_dump(config, sort_keys=False))
    manifest = json.loads((finished.folder / "results/models/reference/manifest.json").read_text())
    parameters = manifest["parameters"] - 7 * manifest["layer_parameters"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINA_DEVICE_GB", str(4 * parameters / 1e9))
        tables = [f"results/tables/{table}.parquet" for table in (*KEYS, "efficiency")]
        project.run(*tables, f"results/exports/{VARIANT}")
    return project


def test_tables_are_those_of_the_undivided_run(divided: Project, finished: Project) -> None:
    for log in ("sweep_units", "fit_runs", "benchmark_task", "capture_activations", "diagnose_layers"):
        said = "".join(file.read_text() for file in (divided.folder / "logs" / log).rglob("*.log"))
        assert "layers find no room" in said, log
    for table, keys in KEYS.items():
        query = f"SELECT * FROM {table} WHERE calibration IN ('recall', 'none')"
        file = finished.folder / f"results/tables/{table}.parquet"
        ours = divided.query(f"{query} ORDER BY ALL")
        theirs = divided.query(
            f"SELECT t.* FROM '{file}' t SEMI JOIN {table} o ON ({_same(keys, 't', 'o')}) ORDER BY ALL"
        )
        assert len(ours) == len(theirs) > 0, table
        for mine, other in zip(ours, theirs, strict=True):
            assert all(map(_close, mine, other)), (table, mine, other)


def _close(mine: Any, other: Any) -> bool:
    if isinstance(mine, list):
        return len(mine) == len(other) and all(map(_close, mine, other))
    return bool(mine == pytest.approx(other, rel=1e-5, abs=1e-6)) if isinstance(mine, float) else mine == other


def _same(keys: str, one: str, other: str) -> str:
    every = ["calibration", *keys.split(", ")]
    return " AND ".join(f"{one}.{key} IS NOT DISTINCT FROM {other}.{key}" for key in every)


def test_sizes_are_measured_and_the_export_is_complete(divided: Project) -> None:
    rows = divided.query("SELECT parameters_ratio, latency_ms FROM efficiency ORDER BY removed, repair")
    assert len(rows) == 2 and all(0 < ratio < 1 and latency > 0 for ratio, latency in rows)
    folder = divided.folder / f"results/exports/{VARIANT}"
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 11
    assert (folder / "model.safetensors").stat().st_size > 1_000_000

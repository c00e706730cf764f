"""Donors from the configuration to the export, in a real run."""

import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from tests.pipeline.project import Project, copy_project, parse_jobs

pytestmark = pytest.mark.slow

VARIANT = "reference/addition/given/removed=2/none/none"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The model has noise in layers 5 and 6, of which its sibling is free: replacing them gains."""
    project = copy_project(tmp_path_factory.mktemp("donors"), "tests/configs/donors.yaml")
    source = project.folder / "resources/reference"
    sibling = project.folder / "sibling"
    sibling.mkdir()
    for file in source.iterdir():
        if file.is_file():
            (sibling / file.name).write_bytes(file.read_bytes())
    weights, rng = load_file(source / "model.safetensors"), np.random.default_rng(0)
    for name, value in weights.items():
        if "layers.5." in name or "layers.6." in name:
            weights[name] = (value + 0.02 * rng.standard_normal(value.shape)).astype(value.dtype)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    tables = ("plans", "sweeps", "benchmarks", "models")
    project.run(
        "benchmark",
        f"results/exports/{VARIANT}",
        *(f"results/tables/{table}.parquet" for table in tables),
    )
    return project


def plan(project: Project, selector: str) -> dict:
    file = project.folder / f"results/plans/reference/addition/{selector}/removed=2.json"
    return json.loads(file.read_text())


def test_a_donor_equal_to_the_model_changes_nothing(finished: Project) -> None:
    assert plan(finished, "same")["units"] == plan(finished, "plain")["units"]
    rows = finished.query(
        "SELECT max(abs(s.nll - n.nll)), count(DISTINCT s.unit) FROM sweeps AS s "
        "JOIN sweeps AS n USING (model, calibration, selector, removed, sample) "
        "WHERE selector = 'same' AND removed = 0 AND n.unit = 'none' AND s.unit LIKE '%.@same'"
    )
    assert rows[0][0] < 1e-4 and rows[0][1] == 12
    same, plain = (
        finished.query(f"SELECT value FROM benchmarks WHERE selector = '{name}' ORDER BY metric")
        for name in ("same", "plain")
    )
    assert same == plain


def test_a_layer_that_a_sibling_has_better_is_taken_and_named_everywhere(finished: Project) -> None:
    found = plan(finished, "given")
    swaps = [unit for unit in found["units"] if "@" in unit]
    assert (
        len(found["units"]) - len(swaps) == 2
        and swaps
        and {unit.split(".")[0] for unit in swaps} <= {"5", "6"}
    )
    told = finished.query(
        "SELECT unit, donor FROM plans WHERE selector = 'given' AND donor IS NOT NULL"
    )
    assert {(unit, unit.partition(".@")[2]) for unit in swaps} == set(told)
    assert finished.query("SELECT model FROM models") == [("reference",)]
    folder = finished.folder / "results/exports" / VARIANT
    assert "## Donors" in (folder / "README.md").read_text()
    recipe = yaml.safe_load((folder / "mergekit.yaml").read_text())
    models = {part["sources"][0]["model"] for part in recipe["slices"]}
    assert models == {"resources/reference", "sibling"} or any("little" in unit for unit in swaps)
    searched = plan(finished, "evolved")
    assert any(unit.endswith(".@other") for unit in searched["units"]) and set(
        searched["replacements"]
    ) == {"other"}
    assert parse_jobs(finished.run("-n", "benchmark").stdout) == []

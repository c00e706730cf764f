"""Donors from the configuration to the export, in a real run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.pipeline.project import Project, copy_project, parse_jobs

pytestmark = pytest.mark.slow

VARIANT = "reference/addition/given/removed=2/none/none"
NOISY_LAYERS = ("5", "6")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A model with noise in two layers, of which its sibling is free: replacing them gains."""
    project = copy_project(tmp_path_factory.mktemp("donors"), "tests/configs/donors.yaml")
    reference = project.folder / "resources/reference"
    ignore_data = shutil.ignore_patterns("data")
    shutil.copytree(reference, project.folder / "sibling", ignore=ignore_data)
    add_noise(reference / "model.safetensors")
    tables = ("plans", "searches", "benchmarks", "models")
    targets = [f"results/tables/{table}.parquet" for table in tables]
    project.run("benchmark", f"results/exports/{VARIANT}", *targets)
    return project


def add_noise(weights_file: Path) -> None:
    rng = np.random.default_rng(0)
    weights = load_file(weights_file)
    for name, weight in weights.items():
        if any(f"layers.{layer}." in name for layer in NOISY_LAYERS):
            noise = 0.02 * rng.standard_normal(weight.shape)
            weights[name] = (weight + noise).astype(weight.dtype)
    save_file(weights, weights_file, metadata={"format": "pt"})


def read_plan(project: Project, selector: str) -> dict:
    file = project.folder / f"results/plans/reference/addition/{selector}/removed=2.json"
    return json.loads(file.read_text())


def replaced_units(plan: dict) -> list[str]:
    return [unit for unit in plan["units"] if "=" in unit]


def test_a_donor_equal_to_the_model_changes_nothing(finished: Project) -> None:
    assert read_plan(finished, "same")["units"] == read_plan(finished, "plain")["units"]
    largest_change, n_sets = finished.query(
        "SELECT max(abs(change)), count(*) FROM searches WHERE selector = 'same' "
        "AND stage = 'moved' AND len(units) = 1 AND units[1] LIKE '%=same:%'"
    )[0]
    assert largest_change < 1e-4
    assert n_sets >= 12

    scores = "SELECT value FROM benchmarks WHERE selector = '{}' AND removed = 2 ORDER BY metric"
    assert finished.query(scores.format("same")) == finished.query(scores.format("plain"))


def test_a_better_layer_of_a_sibling_replaces_the_models(finished: Project) -> None:
    plan = read_plan(finished, "given")

    replaced = replaced_units(plan)
    n_removed = len(plan["units"]) - len(replaced)
    assert n_removed == 2
    assert replaced
    assert {unit.split("=")[0] for unit in replaced} <= set(NOISY_LAYERS)


def test_table_plans_names_the_donor_of_a_layer(finished: Project) -> None:
    replaced = replaced_units(read_plan(finished, "given"))
    rows = finished.query(
        "SELECT unit, edit FROM plans WHERE selector = 'given' AND edit IS NOT NULL"
    )
    assert set(rows) == {(unit, "replacement") for unit in replaced}
    assert finished.query("SELECT model FROM models") == [("reference",)]


def test_an_export_names_the_donors_of_its_layers(finished: Project) -> None:
    folder = finished.folder / "results/exports" / VARIANT
    assert "## Donors" in (folder / "README.md").read_text()


def test_layers_of_a_sibling_help_where_none_is_removed(finished: Project) -> None:
    file = finished.folder / "results/plans/reference/addition/given/removed=0.json"
    plan = json.loads(file.read_text())
    assert {unit.split("=")[0] for unit in replaced_units(plan)} == set(NOISY_LAYERS)
    assert set(plan["replacements"]) == {"other"}
    # With the times of its files, no job has to hash them again.
    assert "model.safetensors" in plan["replacements"]["other"]["files"]


def test_a_finished_run_with_donors_has_nothing_to_do(finished: Project) -> None:
    assert parse_jobs(finished.run("-n", "benchmark").stdout) == []

"""Every kind of study of docs/start.md in a real run, and the papers' in dry ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.pipeline.project import Project, copy_project, parse_jobs, rules_of

pytestmark = pytest.mark.slow

PAPERS = ("rethinking-layer-relevance", "deeper-layers", "ghosted-layers", "minitron")
FIGURES = (
    "relevance_maps",
    "calibration_size",
    "cost_of_metrics",
    "cross_task",
    "angular_triangle",
    "training_curves",
)
N_LAYERS = 12


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run of tests/configs/studies.yaml with checkpoints of a training, up to its figures."""
    project = copy_project(tmp_path_factory.mktemp("studies"), "tests/configs/studies.yaml")
    train_reference(project)
    trained = {"source": "trained/checkpoints/step{checkpoint}", "checkpoints": [2, 30]}
    study = {"models": ["trained"], "calibrations": ["recall"], "metrics": ["accuracy", "cosine"]}
    project.configure({"models": {"trained": trained}, "studies": {"training": study}})
    project.run("--", *(f"results/figures/{name}.svg" for name in FIGURES))
    return project


def train_reference(project: Project) -> None:
    """Run the script of rule train_reference on a smaller model with less training."""
    settings = yaml.safe_load((ROOT / "config/reference.yaml").read_text())
    settings["model"] |= {"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 32}
    settings["training"] |= {
        "tokens": 20_000,
        "tokens_per_step": 500,
        "keep": [2, 30],
        "validate_every": 1000,
    }
    (project.folder / "training.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "workflow/scripts/train_reference.py"]
    command += ["--settings", "training.yaml", "--output", "trained"]
    environment = os.environ | {"PYTHONPATH": str(project.folder / "src")}
    subprocess.run(command, cwd=project.folder, env=environment, check=True, capture_output=True)


@pytest.mark.parametrize("name", FIGURES)
def test_every_kind_of_study_gives_its_figure(studied: Project, name: str) -> None:
    """A figure with nothing to show is a line of text; these have axes."""
    assert 'id="axes_' in (studied.folder / f"results/figures/{name}.svg").read_text()


def test_a_series_of_checkpoints_is_a_model_each_in_order_of_training(studied: Project) -> None:
    models = studied.query("SELECT model, series, step FROM models ORDER BY step NULLS FIRST")
    assert models == [
        ("reference", None, None),
        ("trained-2", "trained", 2),
        ("trained-30", "trained", 30),
    ]
    measured_models = studied.query(
        "SELECT DISTINCT model FROM relevance WHERE metric = 'cosine' AND score > 0 ORDER BY model"
    )
    assert measured_models == [("reference",), ("trained-2",), ("trained-30",)]


def test_relevance_was_measured_at_every_step_of_a_removal(studied: Project) -> None:
    n_scores = studied.query(
        "SELECT calibration, selector, removed, count(*) FROM relevance WHERE metric = 'accuracy' "
        "AND model = 'reference' GROUP BY ALL ORDER BY ALL"
    )
    assert n_scores == [
        ("addition", "accuracy", 1, N_LAYERS - 1),
        ("addition", "base", 0, N_LAYERS),
        ("recall", "accuracy", 1, N_LAYERS - 1),
        ("recall", "base", 0, N_LAYERS),
    ]


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_study_can_be_planned_without_a_network(name: str, tmp_path: Path) -> None:
    project = copy_project(tmp_path, f"config/papers/{name}.yaml")
    planned_rules = rules_of(parse_jobs(project.run("-n").stdout))
    assert planned_rules >= {
        "prepare_model",
        "capture_activations",
        "prune_step",
        "benchmark_task",
        "render_report",
    }

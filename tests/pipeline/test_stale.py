"""Stale means stale: real dry runs after a full run say exactly which jobs a change makes necessary."""

from pathlib import Path

import pytest
import yaml

from tests.pipeline.project import Project

GATHERING = {
    "all",
    "gather_table",
    "gather_jobs",
    "build_database",
    "plot_figure",
    "collect_facts",
    "render_report",
    "check_refusals",
}
EXPENSIVE = {"sweep_units", "capture_activations", "fit_patch", "heal_variant", "benchmark_efficiency"}


def changed(project: Project, tmp_path: Path, change: dict) -> Path:
    """The study's configuration with nested values replaced."""

    def merge(into: dict, values: dict) -> None:
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                merge(into[key], value)
            else:
                into[key] = value

    config = yaml.safe_load(project.config.read_text())
    merge(config, change)
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_second_run_has_nothing_to_do(finished: Project) -> None:
    assert finished.stale() == []


def test_touching_any_file_reruns_nothing(finished: Project) -> None:
    for part in ("resources", "src", "workflow", "rules", "sql", "config"):
        for path in (finished.folder / part).rglob("*"):
            if path.is_file():
                path.touch()
    assert finished.stale() == []


def test_a_new_limit_reruns_that_calibration_and_what_follows_only(finished: Project, tmp_path: Path) -> None:
    jobs = finished.stale(changed(finished, tmp_path, {"calibrations": {"recall": {"limit": 41}}}))
    measured = [job for job in jobs if job.rule not in GATHERING and job.rule != "benchmark_efficiency"]
    assert {job.rule for job in measured} >= {"prepare_calibration", "sweep_units", "fit_patch", "benchmark_task"}
    assert {job.wildcards["calibration"] for job in measured} == {"recall"}


def test_a_new_task_adds_its_jobs_and_reruns_only_what_gathers(finished: Project, tmp_path: Path) -> None:
    change = {"benchmarks": {"tasks": {"microworld_facts": {"limit": 50}}}}
    jobs = finished.stale(changed(finished, tmp_path, change))
    measured = [job for job in jobs if job.rule not in GATHERING]
    assert {job.rule for job in measured} == {"prepare_task", "check_overlap", "benchmark_task"}
    assert {job.wildcards["task"] for job in measured} == {"microworld_facts"}


@pytest.fixture
def restored(finished: Project):
    """Give the edited file back as it was."""
    path = finished.folder / "src/lamina/recovery/ghost.py"
    text = path.read_text()
    yield finished
    path.write_text(text)


def test_editing_a_recovery_reruns_its_patches_and_no_sweep(restored: Project) -> None:
    restored.edit("src/lamina/recovery/ghost.py", "import torch\n", "import torch\n\nEDITED = True\n")
    jobs = restored.stale()
    rules = {job.rule for job in jobs}
    assert "fit_patch" in rules and "benchmark_task" in rules
    assert not rules & {"sweep_units", "capture_activations", "prune_step", "score_relevance", "prepare_calibration"}
    assert {job.wildcards["recovery"] for job in jobs if job.rule == "heal_variant"} == {"ghost"}


def test_a_comment_in_the_library_reruns_nothing(restored: Project) -> None:
    restored.edit("src/lamina/recovery/ghost.py", "import torch\n", "import torch  # the tensors\n")
    assert restored.stale() == []

"""Of several sizes of samples, the largest whose study fits into a time is taken."""

import json
from pathlib import Path

import pytest

from lamina import paths
from lamina.errors import LaminaError
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.cost.forecast import StartSeconds
from lamina_workflow.cost.sample_sizes import (
    MachineSpeed,
    SizeForecast,
    choose_size,
    describe_choice,
    forecast_sizes,
)
from lamina_workflow.prune_study import PruneRequest, prepare_study, write_study
from lamina_workflow.stages.prepare import PrepareCalibration, PrepareModel, PrepareTask
from tests.given.model_folders import save_model
from tests.given.scripts import make_wildcards, run_in_process

FORECASTS = [SizeForecast(400, 3600.0), SizeForecast(200, 1900.0), SizeForecast(50, 700.0)]


@pytest.mark.parametrize(("minutes", "expected"), [(90, 400), (60, 400), (40, 200), (12, 50)])
def test_the_largest_samples_that_fit_are_taken(minutes: float, expected: int) -> None:
    assert choose_size(FORECASTS, minutes).n_samples == expected


def test_a_time_that_is_too_short_is_refused_with_the_time_needed() -> None:
    with pytest.raises(LaminaError, match="50 questions.* takes about 12 min .*--minutes 12 or"):
        choose_size(FORECASTS, 5)


def test_what_was_taken_is_said_beside_what_more_would_take() -> None:
    sentence = describe_choice(FORECASTS, FORECASTS[1], 40)
    assert "at most 200 questions and documents choose" in sentence
    assert "about 31.7 min" in sentence
    assert "400 would take 60 min" in sentence


def test_no_number_is_said_of_samples_that_are_all_taken() -> None:
    """A file with few questions gives the same study at every size."""
    assert "all questions and documents" in describe_choice(FORECASTS[:1], FORECASTS[0], 60)
    few = describe_choice(FORECASTS, FORECASTS[0], 90, n_given=64)
    assert "all questions and documents" in few and "400" not in few
    with pytest.raises(LaminaError, match="with so few questions and documents, this study takes"):
        choose_size(FORECASTS[:1], 5)


def test_a_study_takes_less_with_fewer_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model")
    questions = [
        {"query": f"w{index} w1", "choices": ["w2", "w3"], "gold": index % 2}
        for index in range(100)
    ]
    lines = [json.dumps(question) + "\n" for question in questions]
    (tmp_path / "questions.jsonl").write_text("".join(lines))
    sizes = {
        n_samples: PruneRequest("model", questions=Path("questions.jsonl"), n_samples=n_samples)
        for n_samples in (60, 30)
    }
    study = write_study(sizes[60])
    raw_configurations = {
        n_samples: prepare_study(request).configuration for n_samples, request in sizes.items()
    }
    monkeypatch.chdir(study.folder)
    configurations = {
        n_samples: load_configuration(raw, Path.cwd())
        for n_samples, raw in raw_configurations.items()
    }
    config = configurations[60]
    manifest = paths.manifest("model")
    model_job = PrepareModel.of(config, make_wildcards(model="model"))
    calibration_names = make_wildcards(model="model", calibration="task")
    calibration_job = PrepareCalibration.of(config, calibration_names)
    task_job = PrepareTask.of(config, make_wildcards(task="task"))
    run_in_process(model_job.model_copy(update={"output": manifest}), Path.cwd())
    calibration_files = {"manifest": manifest, "output": paths.calibration("model", "task")}
    run_in_process(calibration_job.model_copy(update=calibration_files), Path.cwd())
    task_files = {"output": "results/tasks/task.parquet"}
    run_in_process(task_job.model_copy(update=task_files), Path.cwd())
    machine = MachineSpeed(1e9, StartSeconds(2.0, 1.0), n_parallel=1)

    larger, smaller = forecast_sizes(configurations, 50, machine)

    assert (larger.n_samples, smaller.n_samples) == (60, 30)
    # The starts of 50 jobs stay, and so does what tests the result.
    assert 50 < smaller.seconds < larger.seconds

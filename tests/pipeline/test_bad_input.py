"""Wrong inputs end with a message that names the key, its value and the remedy.

They leave no half-written file.
"""

import json
import random
import shutil
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lamina.store import parquet
from tests.pipeline.project import Project, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy in which nothing has run."""
    return copy_project(tmp_path_factory.mktemp("bad"), "tests/configs/minimal.yaml")


def with_config(project: Project, config: dict[str, Any]) -> Project:
    path = project.folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return Project(project.folder, path)


def smallest_study(**changes: dict[str, Any]) -> dict[str, Any]:
    """The smallest configuration that prunes, with sections replaced."""
    study = {
        "models": ["reference"],
        "calibrations": ["facts"],
        "selectors": ["accuracy"],
        "removed": [1],
        "repairs": ["none", "ghost"],
    }
    config = {
        "models": {"reference": {"source": "resources/reference"}},
        "calibrations": {"facts": {"task": "microworld_facts", "limit": 40}},
        "selectors": {"accuracy": {"metric": "accuracy"}},
        "repairs": {"ghost": {"method": "ghost"}},
        "benchmarks": {"tasks": {"microworld_facts": {"limit": 40}}},
        "studies": {"prune": study},
    }
    return config | changes


def read_lines(project: Project, name: str, n_lines: int) -> list[str]:
    """The first lines of a file of the embedded model's data."""
    text = (project.folder / "resources/reference/data" / name).read_text()
    return text.splitlines()[:n_lines]


def test_a_misspelt_key_ends_the_run_before_it_starts(project: Project) -> None:
    calibrations = {"facts": {"task": "microworld_facts", "limt": 40}}
    config = smallest_study(calibrations=calibrations)

    run = with_config(project, config).run(check=False)

    assert run.returncode != 0
    assert "calibrations.facts.limt" in run.stdout
    assert "limit" in run.stdout
    assert "Traceback" not in run.stdout


@pytest.mark.slow
def test_a_file_that_is_no_configuration_is_refused_with_its_line(project: Project) -> None:
    path = project.folder / "bad.yaml"
    path.write_text("models: {a: {source: x}\nseed: 1\n")

    run = Project(project.folder, path).run("-n", check=False)

    assert run.returncode != 0
    assert "bad.yaml, line 2, at `seed: 1`: a comma or the closing" in run.stdout
    assert "Traceback" not in run.stdout


@pytest.mark.slow
def test_a_calibration_that_holds_test_documents_is_refused(project: Project) -> None:
    test_documents = read_lines(project, "facts_test.jsonl", 40)
    (project.folder / "leak.jsonl").write_text("\n".join(test_documents))
    config = smallest_study(calibrations={"facts": {"choices": "leak.jsonl"}})
    overlap = "results/overlap/reference/facts/microworld_facts.json"

    run = with_config(project, config).run(overlap, check=False)

    assert run.returncode != 0
    assert "shares 40 of its 40 documents" in run.stdout
    assert "microworld_facts" in run.stdout
    assert not (project.folder / overlap).exists()


@pytest.mark.slow
def test_weights_that_are_not_numbers_end_with_the_model_and_the_remedy(project: Project) -> None:
    source = project.folder / "resources/reference"
    broken = project.folder / "broken"
    broken.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, broken / name)
    weights = load_file(source / "model.safetensors")
    weights["model.layers.3.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    config = smallest_study(models={"reference": {"source": "broken"}})
    sweep = "results/sweeps/reference/facts/base/removal/layer/removed=0.parquet"

    run = with_config(project, config).run(sweep, check=False)

    assert run.returncode != 0
    assert "logits that are NaN" in run.stdout
    assert "dtype: float32" in run.stdout
    assert not (project.folder / sweep).exists()
    assert not list((project.folder / "results").rglob("*.tmp"))


@pytest.fixture(scope="module")
def noise_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a calibration, `noise`, whose right answers are random."""
    folder = tmp_path_factory.mktemp("noise")
    project = copy_project(folder, "tests/configs/minimal.yaml")
    generator = random.Random(0)
    lines = []
    for line in read_lines(project, "facts_train.jsonl", 60):
        question = json.loads(line)
        question["gold"] = generator.randrange(len(question["choices"]))
        lines.append(json.dumps(question))
    (folder / "noise.jsonl").write_text("\n".join(lines))
    config = smallest_study()
    config["calibrations"]["noise"] = {"choices": "noise.jsonl"}
    config["studies"]["prune"]["calibrations"] = ["facts", "noise"]
    return with_config(project, config)


@pytest.mark.slow
def test_a_calibration_at_chance_is_refused_a_plan_and_the_rest_of_the_run_finishes(
    noise_project: Project,
) -> None:
    run = noise_project.run(check=False)

    def read_rows(table: str) -> list[dict[str, Any]]:
        file = noise_project.folder / f"results/tables/{table}.parquet"
        return parquet.read_table(file).to_pylist()

    assert run.returncode != 0
    assert "reference/noise/accuracy" in run.stdout
    assert "Give calibration 'noise'" in run.stdout
    is_refused = {row["calibration"]: row["refused"] is not None for row in read_rows("plans")}
    assert is_refused == {"facts": False, "noise": True}
    assert {row["calibration"] for row in read_rows("benchmarks")} == {"none", "facts"}
    report = (noise_project.folder / "results/report.html").read_text()
    assert "Give calibration" in report
    noise_scores = [
        row
        for row in read_rows("relevance")
        if row["calibration"] == "noise" and row["metric"] == "accuracy"
    ]
    assert noise_scores
    for row in noise_scores:
        assert row["score"] is None
        assert row["reason"]

"""Wrong inputs end with a message that names the key, its value and the remedy, and leave nothing half-written."""

import json
import random
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lamina.store import parquet
from tests.pipeline.project import Project, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A fresh copy in which nothing has run."""
    return copy_project(tmp_path_factory.mktemp("bad"), "tests/configs/minimal.yaml")


def with_config(project: Project, config: dict, name: str) -> Project:
    path = project.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return Project(project.folder, path)


def study(**changes: dict) -> dict:
    """The smallest study that prunes, with parts replaced."""
    pruned = {
        "models": ["reference"],
        "calibrations": ["facts"],
        "selectors": ["accuracy"],
        "removed": [1],
    }
    config = {
        "models": {"reference": {"source": "resources/reference"}},
        "calibrations": {"facts": {"task": "microworld_facts", "limit": 40}},
        "selectors": {"accuracy": {"metric": "accuracy"}},
        "repairs": {"ghost": {"method": "ghost"}},
        "benchmarks": {"tasks": {"microworld_facts": {"limit": 40}}},
        "studies": {"prune": pruned | {"repairs": ["none", "ghost"]}},
    }
    return config | changes


def nothing_half_written(project: Project) -> bool:
    return not list((project.folder / "results").rglob("*.tmp"))


def test_a_misspelt_key_ends_the_run_before_it_starts(project: Project) -> None:
    config = study(calibrations={"facts": {"task": "microworld_facts", "limt": 40}})
    done = with_config(project, config, "misspelt").run(check=False)
    assert done.returncode != 0
    assert "calibrations.facts.limt" in done.stdout and "limit" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_file_that_is_no_configuration_is_told_by_its_line(project: Project) -> None:
    (project.folder / "bad.yaml").write_text("models: {a: {source: x}\nseed: 1\n")
    done = Project(project.folder, project.folder / "bad.yaml").run("-n", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "bad.yaml, line 2, at `seed: 1`: a comma or the closing" in done.stdout


def test_a_calibration_that_holds_test_documents_is_refused(project: Project) -> None:
    lines = (
        (project.folder / "resources/reference/data/facts_test.jsonl").read_text().splitlines()[:40]
    )
    (project.folder / "leak.jsonl").write_text("\n".join(lines))
    config = study(calibrations={"facts": {"choices": "leak.jsonl"}})
    gate = "results/overlap/reference/facts/microworld_facts.json"
    done = with_config(project, config, "leak").run(gate, check=False)
    assert done.returncode != 0
    assert "shares 40 of its 40 documents" in done.stdout and "microworld_facts" in done.stdout
    assert not (project.folder / gate).exists()


@pytest.mark.slow
def test_weights_that_are_not_numbers_end_with_the_model_and_the_remedy(project: Project) -> None:
    source, broken = project.folder / "resources/reference", project.folder / "broken"
    broken.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_bytes((source / name).read_bytes())
    weights = load_file(source / "model.safetensors")
    weights["model.layers.3.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    config = study(models={"reference": {"source": "broken"}})
    target = "results/sweeps/reference/facts/base/removal/layer/removed=0.parquet"
    done = with_config(project, config, "broken").run(target, check=False)
    assert done.returncode != 0 and "not numbers" in done.stdout and "dtype: float32" in done.stdout
    assert not (project.folder / target).exists() and nothing_half_written(project)


@pytest.mark.slow
def test_a_calibration_at_chance_is_refused_a_plan_and_the_rest_of_the_run_finishes(
    tmp_path: Path,
) -> None:
    project = copy_project(tmp_path, "tests/configs/minimal.yaml")
    draw = random.Random(0)
    lines = (
        (project.folder / "resources/reference/data/facts_train.jsonl")
        .read_text()
        .splitlines()[:60]
    )
    questions = [json.loads(line) for line in lines]
    for question in questions:
        question["gold"] = draw.randrange(len(question["choices"]))
    (project.folder / "noise.jsonl").write_text("\n".join(map(json.dumps, questions)))
    config = study()
    config["calibrations"]["noise"] = {"choices": "noise.jsonl"}
    config["studies"]["prune"]["calibrations"] = ["facts", "noise"]
    done = with_config(project, config, "chance").run(check=False)
    assert done.returncode != 0
    assert "reference/noise/accuracy" in done.stdout and "Give calibration 'noise'" in done.stdout
    plans = parquet.read_table(project.folder / "results/tables/plans.parquet").to_pylist()
    assert {row["calibration"]: row["refused"] is None for row in plans} == {
        "facts": True,
        "noise": False,
    }
    benchmarks = parquet.read_table(
        project.folder / "results/tables/benchmarks.parquet"
    ).to_pylist()
    assert {row["calibration"] for row in benchmarks} == {"none", "facts"}
    assert "Give calibration" in (project.folder / "results/report.html").read_text().replace(
        "&#39;", "'"
    )
    relevance = parquet.read_table(project.folder / "results/tables/relevance.parquet").to_pylist()
    undefined = [
        row for row in relevance if row["calibration"] == "noise" and row["metric"] == "accuracy"
    ]
    assert undefined and all(row["score"] is None and row["reason"] for row in undefined)

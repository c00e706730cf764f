"""Offline, a model that huggingface_hub's cache lacks is refused before the first job."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from lamina.errors import LaminaError
from lamina_workflow.checks.cached import check_cached
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.runtime.online import is_offline
from tests import ROOT

STUDY = """
models: {hub: {source: lab/words, revision: main, layers: 12}}
calibrations: {facts: {task: microworld_facts}}
studies: {maps: {models: hub, calibrations: facts, metrics: [cosine]}}
"""


@pytest.fixture
def configuration() -> Configuration:
    return load_configuration(yaml.safe_load(STUDY), ROOT)


def dry_run(folder: Path, offline: str) -> "subprocess.CompletedProcess[str]":
    """A dry run of the study whose hub cache is below this folder."""
    (folder / "mine.yaml").write_text(STUDY)
    (folder / "resources").symlink_to(ROOT / "resources")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": offline,
    }
    files = [
        "--snakefile",
        str(ROOT / "workflow/Snakefile"),
        "--configfile",
        str(folder / "mine.yaml"),
    ]
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--quiet", "all", *files],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fill_cache(folder: Path) -> Path:
    """Put the embedded model into the cache of the hub's client, under an id."""
    repository = folder / "hf/hub/models--lab--words"
    commit = "0" * 40
    snapshot = repository / "snapshots" / commit
    without_data = shutil.ignore_patterns("data", "README.md")
    shutil.copytree(ROOT / "resources/reference", snapshot, ignore=without_data)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return snapshot


def test_offline_a_model_that_is_not_in_the_cache_is_refused(tmp_path: Path) -> None:
    process = dry_run(tmp_path, offline="1")

    fault = "mine.yaml, line 2: models.hub.source: 'lab/words' (revision 'main')"
    assert process.returncode == 1
    assert fault in process.stderr
    assert "hf download lab/words --revision main" in process.stderr
    assert "Traceback" not in process.stderr


def test_offline_a_model_in_the_cache_is_run(tmp_path: Path) -> None:
    fill_cache(tmp_path)

    process = dry_run(tmp_path, offline="1")

    assert process.returncode == 0, process.stderr


def test_a_model_whose_weights_are_not_in_the_cache_is_refused(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = fill_cache(tmp_path)
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf/hub"))

    with pytest.raises(
        LaminaError, match=r"models\.hub\.source: 'lab/words' has no model.safetensors"
    ):
        check_cached(configuration, tmp_path)


def test_online_a_model_need_not_be_in_the_cache(tmp_path: Path) -> None:
    assert dry_run(tmp_path, offline="0").returncode == 0


def test_a_prepared_model_need_not_be_in_the_cache(
    configuration: Configuration, tmp_path: Path
) -> None:
    manifest = tmp_path / "results/models/hub/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"path": str(ROOT / "resources/reference")}))

    check_cached(configuration, tmp_path)


# What huggingface_hub makes of each value of the variable.
READ_BY_HUB = """
import importlib, json, os
from huggingface_hub import constants

read = {}
for value in ("1", "on", "YES", "True", "0", "", "no", "false"):
    os.environ["HF_HUB_OFFLINE"] = value
    read[value] = importlib.reload(constants).HF_HUB_OFFLINE
print(json.dumps(read))
"""


def test_offline_is_what_huggingface_hub_takes_for_it() -> None:
    process = subprocess.run(
        [sys.executable, "-c", READ_BY_HUB],
        env=os.environ | {"TRANSFORMERS_OFFLINE": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    read_by_hub = json.loads(process.stdout)
    assert {value: is_offline({"HF_HUB_OFFLINE": value}) for value in read_by_hub} == read_by_hub

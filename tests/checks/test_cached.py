"""Offline, a model of the hub is in the cache or refused before the first job, as plain huggingface_hub finds it."""

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
from lamina_workflow.checks import load
from lamina_workflow.checks.cached import check_cached
from lamina_workflow.runtime.online import is_offline
from tests import ROOT

CONFIG = """
models: {hub: {source: lab/words, revision: main, layers: 12}}
calibrations: {facts: {task: microworld_facts}}
studies: {maps: {models: hub, calibrations: facts, metrics: [cosine]}}
"""


def dry_run(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "mine.yaml").write_text(CONFIG)
    (folder / "resources").symlink_to(ROOT / "resources")
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "all"]
    command += ["--snakefile", str(ROOT / "Snakefile")]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HOME": str(folder / "hf")}
    variables.pop("LAMINA_OFFLINE", None)
    return subprocess.run(
        [*command, "--configfile", str(folder / "mine.yaml")],
        cwd=folder,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fill_cache(folder: Path) -> None:
    """The cache of the hub's client with the embedded model under an id."""
    repository = folder / "hf/hub/models--lab--words"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(
        ROOT / "resources/reference", snapshot, ignore=shutil.ignore_patterns("data", "README.md")
    )
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)


def test_a_model_that_is_not_in_the_cache_is_refused_before_any_job(tmp_path: Path) -> None:
    done = dry_run(tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "mine.yaml, line 2: models.hub.source: 'lab/words' (revision 'main')" in done.stderr
    assert "hf download lab/words --revision main" in done.stderr


def test_a_model_in_the_cache_is_run(tmp_path: Path) -> None:
    fill_cache(tmp_path)
    done = dry_run(tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr


def test_a_model_whose_weights_are_not_in_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_cache(tmp_path)
    next(tmp_path.glob("hf/hub/*/snapshots/*/model.safetensors")).unlink()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    config = load.load_configuration(yaml.safe_load(CONFIG), ROOT)
    with pytest.raises(LaminaError, match=r"models.hub.source: 'lab/words' has no weights"):
        check_cached(config, tmp_path)


def test_online_the_cache_need_not_hold_it(tmp_path: Path) -> None:
    assert dry_run(tmp_path, HF_HUB_OFFLINE="0").returncode == 0


def test_a_prepared_model_need_not_be_in_the_cache(tmp_path: Path) -> None:
    manifest = tmp_path / "results/models/hub/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"path": str(ROOT / "resources/reference")}))
    check_cached(load.load_configuration(yaml.safe_load(CONFIG), ROOT), tmp_path)


def test_offline_is_what_huggingface_hub_takes_for_it() -> None:
    code = """
import importlib, json, os, huggingface_hub.constants as constants
read = {}
for stated in ("1", "on", "YES", "True", "0", "", "no", "false"):
    os.environ["HF_HUB_OFFLINE"] = stated
    read[stated] = importlib.reload(constants).HF_HUB_OFFLINE
print(json.dumps(read))
"""
    variables = os.environ | {"TRANSFORMERS_OFFLINE": ""}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    for stated, expected in json.loads(asked.stdout).items():
        assert is_offline({"HF_HUB_OFFLINE": stated}) == expected, stated

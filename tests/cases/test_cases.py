"""Inputs from the field: each folder is one, with its files and what is expected of it.

`case.yaml` has these keys:

about
    What the input is, in a sentence.
config
    A configuration, or the sections of one that matter. `resources/reference` is the embedded model.
files
    Files to write, by path: a list is written as JSON lines, a mapping as YAML, a text as it is. Other files of the
    folder are copied. A folder `model` becomes a model: the embedded one with these files over it.
settings
    What stands otherwise in model/config.json.
expected
    `refused`: what the message says (a regular expression). Or numbers: `calibrations` by name, with facts of the
    calibration and the `accuracy` of the model on it; `benchmarks` by name, with metrics, `n_cut` and `n_samples`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.checks import load as checks
from lamina.config.configuration import Configuration
from lamina.data import lm_tasks
from lamina.data.documents import perplexity_texts
from lamina.data.prepare import prepare
from lamina.data.prompts import Style
from lamina.engine.sweep import sweep
from lamina.errors import LaminaError
from lamina.evaluation import perplexity
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together
from lamina.models.load import load_model, load_tokenizer
from lamina.models.manifest import describe
from tests import ROOT

CASES = sorted(file.parent.name for file in Path(__file__).parent.glob("*/case.yaml"))


def place(name: str, root: Path) -> dict[str, Any]:
    """The case, with its files under `root`."""
    folder = Path(__file__).parent / name
    case: dict[str, Any] = yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))
    (root / "resources").mkdir()
    (root / "resources/reference").symlink_to(ROOT / "resources/reference")
    shutil.copytree(ROOT / "workflow/tasks", root / "workflow/tasks")
    model = root / "model/config.json"
    if "settings" in case or any(path.startswith("model/") for path in case.get("files", {})):
        shutil.copytree(
            ROOT / "resources/reference", root / "model", ignore=shutil.ignore_patterns("data")
        )
        model.write_text(
            json.dumps(json.loads(model.read_text(encoding="utf-8")) | case.get("settings", {}))
        )
    shutil.copytree(folder, root, dirs_exist_ok=True)
    for path, content in case.get("files", {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        (root / path).write_text(
            content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8"
        )
    return case


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """A whole configuration: a study of everything that the sections name."""
    config = {"models": {"reference": {"source": "resources/reference"}}} | config
    study = {
        "models": sorted(config["models"]),
        "calibrations": sorted(config.get("calibrations", {})),
    }
    if "studies" not in config and study["calibrations"]:
        config["studies"] = {"maps": study | {"metrics": ["cosine"], "units": "layer"}}
    return config


def calibrations(
    config: Configuration, manifest: dict[str, Any], model: Any, root: Path
) -> dict[str, dict[str, Any]]:
    found = {}
    for name, entry in config.calibrations.items():
        made = prepare(name, entry, manifest, root, config.parts(name))
        right = [row["correct"] for row in sweep(model, made.samples, []).rows(["none"])]
        found[name] = made.facts | {"accuracy": sum(right) / len(right)}
    return found


def benchmarks(
    config: Configuration, manifest: dict[str, Any], model: Any, root: Path
) -> dict[str, dict[str, Any]]:
    tokenizer, found = load_tokenizer(manifest), {}
    for name, task in config.benchmarks.tasks.items():
        loaded = lm_tasks.load_task(
            name, root, task.num_fewshot, task.choices, trust_code=task.trust_code
        )
        lm_tasks.test_documents(loaded, task.limit)
        rows = (
            TaskBenchmark(loaded, model, tokenizer, task.limit, Style.of(manifest))
            .score(model, "base")
            .metrics
        )
        found[name] = {row["metric"]: row["value"] for row in rows} | rows[0]
    for name, text in config.benchmarks.perplexity.items():
        score = perplexity.benchmark(name, perplexity_texts(text, root), tokenizer, text)
        rows, _ = score(model, "base", Together(model, {}))
        found[name] = {row["metric"]: row["value"] for row in rows} | rows[0]
    return found


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = place(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    expected, found = case["expected"], dict[str, Any]()
    try:
        config = checks.load(completed(case["config"]), tmp_path)
        for model, entry in config.models.items():
            manifest = describe(model, entry, tmp_path / entry.source)
            loaded = load_model(manifest)
            found["calibrations"] = calibrations(config, manifest, loaded, tmp_path)
            found["benchmarks"] = benchmarks(config, manifest, loaded, tmp_path)
    except LaminaError as error:
        assert "refused" in expected, error
        with pytest.raises(LaminaError, match=expected["refused"]):
            raise
        return
    assert "refused" not in expected, f"it is not refused, and gives {found}"
    for section, entries in expected.items():
        for entry, numbers in entries.items():
            for key, value in numbers.items():
                assert found[section][entry][key] == pytest.approx(value, rel=1e-4), (
                    section,
                    entry,
                    key,
                )

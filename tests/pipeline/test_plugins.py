"""A repair in a folder outside lamina, as docs/extending.md writes it: Prune&Comp."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from lamina.data.calibrations import read_calibration
from tests import ROOT
from tests.pipeline.project import Project, copy_project, parse_jobs, rules_of

pytestmark = pytest.mark.slow

PATCHES = "results/patches/reference/recall/named/comp.safetensors"
FIRST_REMOVED = 5
N_REMOVED = 2
CONFIGURATION = {
    "models": {"reference": {"source": "resources/reference", "dtype": "float32"}},
    "calibrations": {"recall": {"task": "microworld_recall", "split": "validation", "limit": 12}},
    "selectors": {"named": {"strategy": "given", "layers": [FIRST_REMOVED, FIRST_REMOVED + 1]}},
    "repairs": {"comp": {"method": "prune_comp"}},
    "benchmarks": {"tasks": {"microworld_recall": {"limit": 12}}},
    "studies": {
        "prune": {
            "models": ["reference"],
            "calibrations": ["recall"],
            "selectors": ["named"],
            "removed": [N_REMOVED],
            "repairs": ["none", "comp"],
        }
    },
}


def read_page_module() -> str:
    """The module that the page shows."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    [module] = re.findall(r"```python\n(\"\"\"Prune&Comp.*?)```", page, re.DOTALL)
    return module


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the page, in a folder that LAMINA_PLUGINS names."""
    file = tmp_path / "mine/lamina/repairs/methods/prune_comp.py"
    file.parent.mkdir(parents=True)
    file.write_text(read_page_module(), encoding="utf-8")
    monkeypatch.setenv("LAMINA_PLUGINS", str(tmp_path / "mine"))
    return file


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    copied = copy_project(folder, "config/mine.yaml")
    copied.config.write_text(yaml.safe_dump(CONFIGURATION))
    return copied


@torch.no_grad()
def mean_ratio_of_streams(project: Project) -> float:
    """The mean over samples and channels of mean_t |h_end| / mean_t |h_start|, by transformers."""
    calibration = read_calibration(
        str(project.folder / "results/calibrations/reference/recall.parquet")
    )
    model = AutoModelForCausalLM.from_pretrained(ROOT / "resources/reference")
    ratios = []
    for sequence in calibration.sequences():
        states = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        start = np.abs(states[FIRST_REMOVED][0].numpy()).mean(axis=0)
        end = np.abs(states[FIRST_REMOVED + N_REMOVED][0].numpy()).mean(axis=0)
        ratios.append(end / start)
    return float(np.mean(ratios))


def test_a_repair_outside_lamina_is_fitted_and_its_code_counts(
    plugin: Path, project: Project
) -> None:
    project.run("--", PATCHES)

    [scale] = load_file(project.folder / PATCHES).values()
    np.testing.assert_allclose(scale, mean_ratio_of_streams(project), rtol=1e-4)

    assert "fit_patch" not in rules_of(parse_jobs(project.run("-n", "--", PATCHES).stdout))
    plugin.write_text(plugin.read_text().replace("ratios.mean()", "ratios.median()"))
    assert "fit_patch" in rules_of(parse_jobs(project.run("-n", "--", PATCHES).stdout))


def test_without_its_folder_the_method_is_refused_by_name(project: Project) -> None:
    output = project.run("-n", check=False).stdout

    assert "repairs.comp.method" in output
    assert "'prune_comp'" in output

"""A model that is a folder of quantised weights is dequantised once, measured and exported."""

import json

import pytest
import yaml
from safetensors.torch import load_file

from tests.given import tiny
from tests.models.test_quantised import fp8
from tests.pipeline.project import copy_project

pytestmark = pytest.mark.slow

SAID = "dequantising packed/config.json into results/checkpoints/"


def test_a_quantised_folder_is_measured_and_exported(tmp_path) -> None:
    project = copy_project(tmp_path, "tests/configs/minimal.yaml")
    worth = fp8(project.folder / "packed")
    tiny.tokenizer().save_pretrained(project.folder / "packed")
    questions = [
        {"query": f"w{n} w2 w3", "choices": ["w4", "w5 w6"], "gold": n % 2} for n in range(8)
    ]
    (project.folder / "mine.jsonl").write_text("\n".join(map(json.dumps, questions)))
    study = {"models": ["tiny"], "calibrations": ["mine"], "selectors": ["loss"], "removed": [1]}
    config = {
        "models": {"tiny": {"source": "packed", "dtype": "float32"}},
        "studies": {"prune": study},
    }
    config |= {"calibrations": {"mine": {"choices": "mine.jsonl"}}}
    config |= {"selectors": {"loss": {"metric": "perplexity", "strategy": "one_shot"}}}
    project.config.write_text(yaml.safe_dump(config))
    assert project.run("--", "prune").stdout.count(SAID) == 1
    (project.folder / "packed").touch()
    assert SAID not in project.run("-n", "--", "prune").stdout
    folder = "results/exports/tiny/mine/loss/removed=1/none/none"
    project.run("--", folder)
    exported = load_file(project.folder / folder / "model.safetensors")
    plan = json.loads((project.folder / "results/plans/tiny/mine/loss/removed=1.json").read_text())
    kept = [layer for layer in range(5) if str(layer) not in plan["units"]]
    name = "self_attn.q_proj.weight"
    for place, layer in enumerate(kept):
        assert (
            exported[f"model.layers.{place}.{name}"] == worth[f"model.layers.{layer}.{name}"]
        ).all()

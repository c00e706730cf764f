"""A model that is a folder of quantised weights is dequantised once, measured and exported."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.given import tiny
from tests.models.test_quantised import fp8
from tests.pipeline.project import copy_project

pytestmark = pytest.mark.slow

N_LAYERS = 5
DEQUANTISING = "dequantising packed/config.json into results/checkpoints/"
CONFIG = {
    "models": {"tiny": {"source": "packed", "dtype": "float32"}},
    "calibrations": {"mine": {"choices": "mine.jsonl"}},
    "selectors": {"loss": {"metric": "perplexity", "strategy": "one_shot"}},
    "studies": {
        "prune": {
            "models": ["tiny"],
            "calibrations": ["mine"],
            "selectors": ["loss"],
            "removed": [1],
        }
    },
}


def test_a_quantised_folder_is_measured_and_exported(tmp_path: Path) -> None:
    project = copy_project(tmp_path, "tests/configs/minimal.yaml")
    dequantised_weights = fp8(project.folder / "packed")
    tiny.tokenizer().save_pretrained(project.folder / "packed")
    lines = []
    for number in range(8):
        question = {
            "query": f"w{number} w2 w3",
            "choices": ["w4", "w5 w6"],
            "gold": number % 2,
        }
        lines.append(json.dumps(question))
    (project.folder / "mine.jsonl").write_text("\n".join(lines))
    project.config.write_text(yaml.safe_dump(CONFIG))

    assert project.run("--", "prune").stdout.count(DEQUANTISING) == 1
    (project.folder / "packed").touch()
    assert DEQUANTISING not in project.run("-n", "--", "prune").stdout

    export = "results/exports/tiny/mine/loss/removed=1/none/none"
    project.run("--", export)
    exported_weights = load_file(project.folder / export / "model.safetensors")
    plan_file = project.folder / "results/plans/tiny/mine/loss/removed=1.json"
    removed_units = json.loads(plan_file.read_text())["units"]
    remaining_layers = [layer for layer in range(N_LAYERS) if str(layer) not in removed_units]
    for new_index, layer_index in enumerate(remaining_layers):
        exported = exported_weights[f"model.layers.{new_index}.self_attn.q_proj.weight"]
        expected = dequantised_weights[f"model.layers.{layer_index}.self_attn.q_proj.weight"]
        assert torch.equal(exported, expected)

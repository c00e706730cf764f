"""A model that is a GGUF file is dequantised once, and then it is a model like any other."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from lamina.models import gguf
from tests.given import gguf_files
from tests.pipeline.project import Project, copy_project, rules_of

pytestmark = pytest.mark.slow

DEQUANTISING = "dequantising tiny.gguf into results/checkpoints/"
CONFIG = {
    "models": {"tiny": {"source": "tiny.gguf"}},
    "calibrations": {"mine": {"choices": "mine.jsonl"}},
    "selectors": {"deep": {"strategy": "deepest"}},
    "studies": {
        "maps": {"models": ["tiny"], "calibrations": ["mine"], "metrics": ["perplexity"]},
    },
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A map of the layers of a GGUF file on a few questions, not run."""
    project = copy_project(tmp_path_factory.mktemp("gguf"), "tests/configs/minimal.yaml")
    gguf_files.write(project.folder / "tiny.gguf")
    lines = []
    for number in range(8):
        question = {
            "query": f"{number} in the",
            "choices": ["inn", "the 12"],
            "gold": number % 2,
        }
        lines.append(json.dumps(question))
    (project.folder / "mine.jsonl").write_text("\n".join(lines))
    project.config.write_text(yaml.safe_dump(CONFIG))
    return project


def read_manifest(project: Project, model: str) -> dict:
    return json.loads((project.folder / f"results/models/{model}/manifest.json").read_text())


# Each test goes on where the one before it ended.


def test_it_is_dequantised_once_with_a_line_that_says_so(project: Project) -> None:
    output = project.run("--", "relevance").stdout

    assert output.count(DEQUANTISING) == 1
    manifest = read_manifest(project, "tiny")
    assert manifest["source"] == "tiny.gguf"
    assert manifest["n_layers"] == gguf_files.LAYERS
    assert (project.folder / manifest["path"]).is_relative_to(project.folder / "results")
    assert list((project.folder / "results/relevance/tiny").rglob("*.parquet"))
    (project.folder / "tiny.gguf").touch()
    assert DEQUANTISING not in project.run("-n").stdout


def test_its_export_is_a_gguf_file_on_request(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_EXPORT_FORM", "gguf")
    variant = "tiny/mine/deep/removed=1/none/none"

    project.run(f"results/exports/{variant}")

    file = f"results/exports/{variant}/model.gguf"
    expected_shape = (gguf_files.LAYERS - 1, gguf_files.CONTEXT)
    assert gguf.read_shape(project.folder / file, "") == expected_shape
    log = (project.folder / f"logs/export_variant/{variant}.log").read_text()
    assert f"gguf: llama-cli -m {file}" in log


def test_its_checkpoint_and_its_export_are_in_bfloat16(project: Project) -> None:
    """Although the study computes in float32."""
    export = "results/exports/tiny/mine/deep/removed=1/none/none"
    project.run(export)

    manifest = read_manifest(project, "tiny")
    assert manifest["dtype"] == "float32"
    for folder in (manifest["path"], export):
        weights = load_file(project.folder / folder / "model.safetensors")
        assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_another_name_of_the_model_dequantises_nothing(project: Project) -> None:
    """A checkpoint is named by what is in the file."""
    with project.restored():
        project.configure({"models": {"other": CONFIG["models"]["tiny"]}})
        project.configure({"studies": {"maps": {"models": ["other"]}}})
        output = project.run("--", "results/models/other/manifest.json").stdout

    assert DEQUANTISING not in output
    assert read_manifest(project, "other")["path"] == read_manifest(project, "tiny")["path"]


def test_another_file_is_dequantised_again(project: Project) -> None:
    gguf_files.write(project.folder / "tiny.gguf", seed=1)
    assert DEQUANTISING in project.run("-n").stdout
    assert {"prepare_model", "sweep_units"} <= rules_of(project.stale())

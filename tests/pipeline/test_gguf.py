"""A model that is a GGUF file is dequantised once, and then it is a model like any other."""

import json

import pytest
import yaml

from lamina.models import gguf
from tests.given import gguf_files
from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.slow

SAID = "dequantising tiny.gguf into results/checkpoints/"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A map of its layers on a few questions."""
    copy = copy_project(tmp_path_factory.mktemp("gguf"), "tests/configs/minimal.yaml")
    gguf_files.write(copy.folder / "tiny.gguf")
    questions = [
        {"query": f"{n} in the", "choices": ["inn", "the 12"], "gold": n % 2} for n in range(8)
    ]
    (copy.folder / "mine.jsonl").write_text("\n".join(map(json.dumps, questions)))
    study = {"models": ["tiny"], "calibrations": ["mine"], "metrics": ["perplexity"]}
    config = {
        "models": {"tiny": {"source": "tiny.gguf"}},
        "calibrations": {"mine": {"choices": "mine.jsonl"}},
    }
    config["selectors"] = {"deep": {"strategy": "deepest"}}
    copy.config.write_text(yaml.safe_dump(config | {"studies": {"maps": study}}))
    return copy


def test_it_is_dequantised_once_with_a_line_that_says_so(project: Project) -> None:
    said = project.run("--", "relevance").stdout
    assert said.count(SAID) == 1
    manifest = json.loads((project.folder / "results/models/tiny/manifest.json").read_text())
    assert (manifest["source"], manifest["n_layers"]) == ("tiny.gguf", gguf_files.LAYERS)
    assert (project.folder / manifest["path"]).is_relative_to(project.folder / "results")
    assert list((project.folder / "results/relevance/tiny").rglob("*.parquet"))
    (project.folder / "tiny.gguf").touch()
    assert SAID not in project.run("-n").stdout


def test_its_export_is_a_gguf_file_if_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_EXPORT_FORM", "gguf")
    folder = "results/exports/tiny/mine/deep/removed=1/none/none"
    project.run(folder)
    assert gguf.read_shape(project.folder / folder / "model.gguf", "") == (
        gguf_files.LAYERS - 1,
        gguf_files.CONTEXT,
    )
    log = (
        project.folder / f"logs/export_variant/{folder.removeprefix('results/exports/')}.log"
    ).read_text()
    assert f"gguf: llama-cli -m {folder}/model.gguf" in log


def test_another_name_of_the_model_dequantises_nothing(project: Project) -> None:
    """The checkpoint is named by what is in the file."""
    text = project.config.read_text()
    project.config.write_text(text.replace("tiny:", "other:").replace("- tiny", "- other"))
    try:
        log = project.run("--", "results/models/other/manifest.json").stdout
    finally:
        project.config.write_text(text)
    assert SAID not in log
    paths = [
        json.loads((project.folder / f"results/models/{name}/manifest.json").read_text())["path"]
        for name in ("tiny", "other")
    ]
    assert paths[0] == paths[1]


def test_another_file_is_dequantised_again(project: Project) -> None:
    gguf_files.write(project.folder / "tiny.gguf", seed=1)
    assert SAID in project.run("-n").stdout
    assert {"prepare_model", "sweep_units"} <= {job.rule for job in project.stale()}

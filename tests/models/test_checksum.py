"""No number comes from weights that are not those of the model that was prepared."""

from pathlib import Path
from typing import Any

import pytest

from lamina.config.models import Model
from lamina.errors import LaminaError, explained
from lamina.models import manifest as manifests
from lamina.models.load import load_model
from lamina.models.manifest import describe, find_model
from tests.given import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a model, in which a run has begun."""
    folder = tmp_path / "one"
    tiny.model().save_pretrained(folder / "model")
    monkeypatch.chdir(folder)
    return folder


def prepared(source: str = "model") -> dict[str, Any]:
    entry = Model(source=source, dtype="float32")
    return describe("mine", entry, find_model("mine", entry, Path.cwd()))


def test_weights_that_change_while_a_job_reads_them_end_it(project: Path) -> None:
    manifest = prepared()
    said = "files of the model 'model' .* not what they were when it was prepared"
    with pytest.raises(SystemExit, match=said), explained():
        load_model(manifest)
        tiny.model(seed=1).save_pretrained("model")
    with pytest.raises(LaminaError, match="not what they were"):
        load_model(manifest)
    with explained():  # what is left of the job before checks nothing here
        pass


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_so_do_a_configuration_and_a_tokenizer(file: str, project: Path) -> None:
    tiny.tokenizer().save_pretrained("model")
    manifest = prepared()
    Path("model", file).write_text(Path("model", file).read_text() + "\n")
    with pytest.raises(LaminaError, match="configuration or tokenizer of the model"):
        load_model(manifest)


def test_files_that_are_as_prepared_are_not_hashed_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = prepared()
    hashed = []
    sha256 = manifests._sha256
    monkeypatch.setattr(manifests, "_sha256", lambda files: hashed.append(1) or sha256(files))
    manifests.check_files(manifest)
    assert hashed == []
    Path("model/model.safetensors").touch()
    manifests.check_files(manifest)
    assert len(hashed) == 2  # weights, and what stands beside them

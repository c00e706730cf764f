"""What is refused before a model is loaded, and that touching a file changes nothing."""

import json
import shutil
from pathlib import Path

import pytest

from lamina.errors import LaminaError
from lamina.models.manifest import describe, find_model, fingerprint

REFERENCE = Path(__file__).parents[2] / "resources/reference"
ENTRY = {"source": "somewhere", "dtype": "float32", "trust_remote_code": False, "chat_template": False, "layers": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(REFERENCE / name, tmp_path / name)
    return tmp_path


def test_the_manifest_counts_what_transformers_counts(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    manifest = describe("mine", ENTRY, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert manifest["parameters"] == sum(p.numel() for p in model.parameters())
    assert manifest["n_layers"] == len(model.model.layers)
    assert (manifest["hidden_size"], manifest["family"]) == (model.config.hidden_size, "llama")


def test_pickled_weights_are_refused_with_the_remedy(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(LaminaError, match="models.mine.source.*pickled weights only.*save_pretrained"):
        describe("mine", ENTRY, folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(LaminaError, match="no weights"):
        describe("mine", ENTRY, folder)


def test_cut_off_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(LaminaError, match="not a complete safetensors file"):
        describe("mine", ENTRY, folder)


@pytest.mark.parametrize("kind", ["auto_map", "file"])
def test_code_in_the_folder_is_refused_unless_allowed(folder: Path, kind: str) -> None:
    if kind == "file":
        (folder / "modeling_mine.py").write_text("raise SystemExit('this must never run')\n")
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling_mine.X"}})
        )
    with pytest.raises(LaminaError, match="own Python code.*trust_remote_code: true.*models.mine"):
        describe("mine", ENTRY, folder)
    assert describe("mine", ENTRY | {"trust_remote_code": True}, folder)["n_layers"] == 12


def test_a_wrong_number_of_layers_is_refused(folder: Path) -> None:
    with pytest.raises(LaminaError, match="models.mine.layers: says 32.*Write 12"):
        describe("mine", ENTRY | {"layers": 32}, folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="models.mine.source: there is no folder './gone'"):
        find_model("mine", ENTRY | {"source": "./gone"}, tmp_path)


def test_a_hub_model_that_cannot_be_had_is_refused_with_the_remedy(tmp_path: Path, monkeypatch) -> None:
    """Off the network, as every compute job is; the hub itself says the same for unknown and gated models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(LaminaError, match="models.mine.source: 'nobody/no-such-model'.*(hf download|hf auth login)"):
        find_model("mine", ENTRY | {"source": "nobody/no-such-model", "revision": "main"}, tmp_path)


def test_the_fingerprint_follows_content_not_time(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "model.safetensors").touch()
    assert fingerprint(folder) == before
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(data))
    assert fingerprint(folder) != before

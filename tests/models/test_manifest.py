"""What is refused before a model is loaded, and that touching a file changes nothing."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.config.models import Model
from lamina.errors import LaminaError
from lamina.models.checkpoint import context
from lamina.models.load import load_model, load_skeleton, load_tokenizer
from lamina.models.manifest import describe, find_model, fingerprint
from tests.given import tiny

REFERENCE = Path(__file__).parents[2] / "resources/reference"
ENTRY = Model(source="somewhere", dtype="float32")


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
    trusted = ENTRY.model_copy(update={"trust_remote_code": True})
    if kind == "file":
        assert describe("mine", trusted, folder)["n_layers"] == 12
    else:  # transformers looks for the code
        with pytest.raises(LaminaError, match="does not load: .*modeling_mine.py"):
            describe("mine", trusted, folder)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "big_bird"])
def test_a_model_that_attends_both_ways_is_refused(folder: Path, model_type: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    with pytest.raises(LaminaError, match=f"a '{model_type}' attends to later tokens too.*is_decoder: true"):
        describe("model", Model(source=str(folder)), folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "is_decoder": True}))
    assert describe("model", Model(source=str(folder)), folder)["family"] == model_type


def test_a_wrong_number_of_layers_is_refused(folder: Path) -> None:
    with pytest.raises(LaminaError, match="models.mine.layers: says 32.*Write 12"):
        describe("mine", ENTRY.model_copy(update={"layers": 32}), folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="models.mine.source: there is no folder './gone'"):
        find_model("mine", ENTRY.model_copy(update={"source": "./gone"}), tmp_path)


def test_a_hub_model_that_cannot_be_had_is_refused_with_the_remedy(tmp_path: Path, monkeypatch) -> None:
    """Off the network, as every compute job is; the hub itself says the same for unknown and gated models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(LaminaError, match="models.mine.source: 'nobody/no-such-model'.*(hf download|hf auth login)"):
        find_model("mine", ENTRY.model_copy(update={"source": "nobody/no-such-model", "revision": "main"}), tmp_path)


def test_the_fingerprint_follows_content_not_time(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "model.safetensors").touch()
    assert fingerprint(folder) == before
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(data))
    assert fingerprint(folder) != before


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(LaminaError, match=r"names model-00002-of-00002.safetensors, which is not there \(1 of 2"):
        describe("mine", ENTRY, folder)


def test_a_damaged_index_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(LaminaError, match="models.mine.source: .*model.safetensors.index.json is damaged"):
        describe("mine", ENTRY, folder)


def test_a_wrong_family_is_refused(folder: Path) -> None:
    assert describe("mine", ENTRY.model_copy(update={"family": "llama"}), folder)["family"] == "llama"
    with pytest.raises(LaminaError, match=r"models.mine.family: says qwen2, but the model is llama. Write llama."):
        describe("mine", ENTRY.model_copy(update={"family": "qwen2"}), folder)


def test_the_users_home_is_found(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("mine", Model(source=f"~/{folder.name}"), Path("/")) == folder
    with pytest.raises(LaminaError, match="models.mine.source: there is no folder '~nobody_of_that_name/model'"):
        find_model("mine", Model(source="~nobody_of_that_name/model"), Path("/"))


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 64, "n_ctx": 32}, 64),
        ({"n_ctx": 32}, 32),
        ({"max_position_embeddings": 7, "text_config": {"max_position_embeddings": 99}}, 99),
        ({"text_config": {}, "n_ctx": 32}, 32),
        ({"alibi": True}, None),
    ],
)
def test_the_context_is_what_the_config_says(settings: dict, tokens: int | None) -> None:
    assert context(settings) == tokens


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers: 10000000.*no model has"),
        ({"num_hidden_layers": -1}, "which no model has"),
        ({"text_config": [1]}, "is not JSON"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | change))
    with pytest.raises(LaminaError, match=f"models.mine.source: .*config.json.*{said}"):
        describe("mine", ENTRY, folder)


@pytest.mark.parametrize("name", ["config.json", "model-2.safetensors", "tokenizer.json", "extra.txt"])
def test_a_pipe_in_a_models_folder_hangs_nothing(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    fingerprint(folder)
    with pytest.raises(LaminaError, match=f"{name} is no plain file"):
        describe("mine", ENTRY, folder)


def test_a_dtype_that_there_is_not_ends_with_the_folders_name(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"dtype": "Q9", "torch_dtype": "Q9"}))
    manifest = {"path": str(tmp_path), "source": "mine", "trust_remote_code": False, "dtype": "auto"}
    for load in (load_skeleton, load_model):
        with pytest.raises(LaminaError, match="the model 'mine' in .* does not load"):
            load(manifest)


def test_a_chat_template_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.models.load._TEMPLATE_SECONDS", 1)
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    manifest = {"path": str(tmp_path), "source": "mine", "trust_remote_code": False, "chat_template": True}
    with pytest.raises(LaminaError, match="chat template of the model 'mine' did not come to an end in 1 s"):
        load_tokenizer(manifest)

"""A model whose files are not what its entry or manifest says is refused before it is loaded."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig

from lamina.errors import LaminaError
from lamina.models.checkpoint import stated_context
from lamina.models.digests import (
    check_files,
    checkpoint_name,
    describe_files,
    fingerprint_model,
)
from lamina.models.load import load_model
from lamina.models.manifest import describe_model, find_model, load_skeleton
from lamina.options.models import Model
from tests import ROOT
from tests.families import configurations
from tests.given import tiny
from tests.given.model_folders import change_config, manifest_of, save_model

REFERENCE = ROOT / "resources/reference"
ENTRY = Model(source="somewhere", dtype="float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(REFERENCE / name, tmp_path / name)
    return tmp_path


def test_an_entry_that_says_what_the_folder_holds_is_taken(folder: Path) -> None:
    entry = ENTRY.model_copy(update={"family": "llama", "layers": 12})
    assert describe_model("mine", entry, folder)["family"] == "llama"


@pytest.mark.parametrize(
    ("entry_changes", "message"),
    [
        ({"layers": 32}, "models.mine.layers: says 32.*Write 12"),
        (
            {"family": "qwen2"},
            "models.mine.family: says qwen2, but the model is llama. Write llama.",
        ),
    ],
)
def test_an_entry_that_says_something_else_than_the_folder_is_refused(
    folder: Path, entry_changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        describe_model("mine", ENTRY.model_copy(update=entry_changes), folder)


def break_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def set_config(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: change_config(folder, **changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_weights, "not a complete safetensors"),
        (
            set_config(num_hidden_layers=10**7),
            "source: .*config.json.*num_hidden_layers: 10000000.*no model has",
        ),
        (set_config(num_hidden_layers=-1), "which no model has"),
        (set_config(text_config=[1]), "is not JSON"),
    ],
)
def test_a_damaged_folder_is_refused(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(LaminaError, match=message):
        describe_model("mine", ENTRY, folder)


def test_settings_that_config_json_leaves_out_are_those_of_transformers(tmp_path: Path) -> None:
    """Published Gemma 3 states no vocabulary, and LLaVA no number of layers."""
    configurations.seeing("gemma3").save_pretrained(tmp_path)
    change_config(tmp_path, text_config={"model_type": "gemma3_text"})

    manifest = describe_model("mine", ENTRY, tmp_path)

    default = Gemma3TextConfig()
    assert manifest["n_layers"] == default.num_hidden_layers
    assert manifest["hidden_size"] == default.hidden_size
    assert manifest["vocabulary"] == default.vocab_size


FOREIGN_CODE = "own Python code.*trust_remote_code: true.*models.mine"


def test_a_folder_with_python_files_is_refused_unless_it_is_trusted(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('this must never run')\n")
    with pytest.raises(LaminaError, match=FOREIGN_CODE):
        describe_model("mine", ENTRY, folder)
    trusted = ENTRY.model_copy(update={"trust_remote_code": True})
    assert describe_model("mine", trusted, folder)["n_layers"] == 12


def test_a_configuration_that_names_code_is_refused_unless_it_is_trusted(folder: Path) -> None:
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_mine.X"})
    with pytest.raises(LaminaError, match=FOREIGN_CODE):
        describe_model("mine", ENTRY, folder)
    # Then transformers looks for the code.
    trusted = ENTRY.model_copy(update={"trust_remote_code": True})
    with pytest.raises(LaminaError, match="does not load: .*modeling_mine.py"):
        describe_model("mine", trusted, folder)


def test_a_hub_model_that_is_not_here_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network, as in every compute job; tests/hub asks a hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    entry = Model(source="nobody/no-such-model", revision="main")
    message = "models.mine.source: 'nobody/no-such-model'.*(hf download|hf auth login)"
    with pytest.raises(LaminaError, match=message):
        find_model("mine", entry, tmp_path)


def test_the_users_home_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("mine", Model(source=f"~/{folder.name}"), Path("/")) == folder


@pytest.mark.parametrize("source", ["~nobody_of_that_name/model", "./missing"])
def test_a_missing_folder_is_named_as_it_was_written(source: str) -> None:
    with pytest.raises(LaminaError, match=f"models.mine.source: there is no folder '{source}'"):
        find_model("mine", Model(source=source), Path("/"))


@pytest.mark.parametrize(
    ("config", "n_tokens"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 64, "n_ctx": 32}, 64),
        ({"n_ctx": 32}, 32),
        ({"max_position_embeddings": 7, "text_config": {"max_position_embeddings": 99}}, 99),
        ({"text_config": {}, "n_ctx": 32}, 32),
        ({"alibi": True}, None),
    ],
)
def test_the_context_is_what_the_config_says(config: dict[str, Any], n_tokens: int | None) -> None:
    assert stated_context(config) == n_tokens


def test_a_dtype_that_does_not_exist_is_refused_with_the_folders_name(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path)
    change_config(tmp_path, dtype="Q9", torch_dtype="Q9")
    message = "the model 'mine' in .* does not load"
    with pytest.raises(LaminaError, match=message):
        load_model(manifest_of(tmp_path, dtype="auto"))
    with pytest.raises(LaminaError, match=message):
        load_skeleton(tmp_path, "mine", False)


@pytest.mark.parametrize(("dtype", "n_bytes"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_weights_count_in_the_dtype_they_are_loaded_with(
    folder: Path, dtype: str, n_bytes: int
) -> None:
    manifest = describe_model("mine", ENTRY.model_copy(update={"dtype": dtype}), folder)
    assert manifest["weights_bytes"] == n_bytes * manifest["parameters"]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The manifest of the model in `model`, as the workflow prepares it."""
    save_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    entry = Model(source="model", dtype="float32")
    return describe_model("mine", entry, find_model("mine", entry, tmp_path))


def test_weights_that_changed_after_preparation_are_refused(prepared: dict[str, Any]) -> None:
    load_model(prepared)
    tiny.model(seed=1).save_pretrained("model")
    with pytest.raises(
        LaminaError, match="weights of the model 'model' .* changed after it was prepared"
    ):
        load_model(prepared)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_settings_that_changed_after_preparation_are_refused(
    name: str, prepared: dict[str, Any]
) -> None:
    file = Path("model", name)
    file.write_text(file.read_text() + "\n")
    with pytest.raises(LaminaError, match="configuration or tokenizer of the model"):
        load_model(prepared)


def test_a_vocabulary_that_changed_after_preparation_is_refused(tmp_path: Path) -> None:
    (save_model(tmp_path) / "merges.txt").write_text("a b")
    manifest = manifest_of(tmp_path) | describe_files(tmp_path)
    (tmp_path / "merges.txt").write_text("a c")
    with pytest.raises(LaminaError, match="configuration or tokenizer of the model"):
        check_files(manifest)


@pytest.mark.parametrize("name", ["LICENSE.txt", "notes.txt"])
def test_a_text_next_to_a_model_does_not_change_it(name: str, prepared: dict[str, Any]) -> None:
    fingerprint = fingerprint_model(Path("model"))
    Path("model", name).write_text("read me")
    check_files(prepared)
    assert fingerprint_model(Path("model")) == fingerprint


def test_touched_files_are_as_prepared(prepared: dict[str, Any]) -> None:
    Path("model/model.safetensors").touch()
    check_files(prepared)


def test_files_are_read_again_only_when_their_size_or_time_changed(
    prepared: dict[str, Any],
) -> None:
    file = Path("model/config.json")
    stat = file.stat()
    file.write_text(file.read_text().replace("llama", "lloma"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    check_files(prepared)

    file.touch()
    with pytest.raises(LaminaError, match="configuration or tokenizer of the model"):
        check_files(prepared)


def test_the_fingerprint_follows_content_not_time(folder: Path) -> None:
    file = folder / "model.safetensors"
    fingerprint = fingerprint_model(folder)
    file.touch()
    assert fingerprint_model(folder) == fingerprint

    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert fingerprint_model(folder) != fingerprint


SOME_MEGABYTES = bytes(range(256)) * 40_000


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    (tmp_path / "first.gguf").write_bytes(SOME_MEGABYTES)
    return tmp_path / "first.gguf"


def test_a_dequantised_checkpoint_is_named_by_content_and_dtype(gguf_file: Path) -> None:
    name = checkpoint_name(gguf_file, "auto")
    copy = gguf_file.with_name("second.gguf")
    shutil.copyfile(gguf_file, copy)
    assert checkpoint_name(copy, "auto") == name
    assert checkpoint_name(copy, "bfloat16") != name


@pytest.mark.parametrize(
    "content",
    [b"x" + SOME_MEGABYTES[1:], SOME_MEGABYTES[:-1] + b"x", SOME_MEGABYTES + b"x"],
    ids=["first byte", "last byte", "one byte more"],
)
def test_another_content_has_another_checkpoint(gguf_file: Path, content: bytes) -> None:
    name = checkpoint_name(gguf_file, "auto")
    gguf_file.write_bytes(content)
    assert checkpoint_name(gguf_file, "auto") != name


def test_another_tokenizer_beside_the_file_has_another_checkpoint(gguf_file: Path) -> None:
    name = checkpoint_name(gguf_file, "auto")
    gguf_file.with_name("tokenizer.json").write_text("{}")
    assert checkpoint_name(gguf_file, "auto") != name


def test_another_second_shard_has_another_checkpoint(tmp_path: Path) -> None:
    first_shard = tmp_path / "model-00001-of-00002.gguf"
    second_shard = tmp_path / "model-00002-of-00002.gguf"
    first_shard.write_bytes(SOME_MEGABYTES)
    second_shard.write_bytes(SOME_MEGABYTES)
    name = checkpoint_name(first_shard, "auto")
    second_shard.write_bytes(SOME_MEGABYTES[:-1] + b"x")
    assert checkpoint_name(first_shard, "auto") != name


def test_the_checkpoint_of_a_quantised_folder_is_named_by_what_the_folder_holds(
    folder: Path,
) -> None:
    name = checkpoint_name(folder, "auto")
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert checkpoint_name(copy, "auto") == name
    change_config(copy, note="another one")
    assert checkpoint_name(copy, "auto") != name

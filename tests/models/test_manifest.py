"""What is refused before a model is loaded, and no number comes from weights that are not those that were prepared."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.models import digests
from lamina.models.checkpoint import stated_context
from lamina.models.digests import checkpoint_name, fingerprint_model
from lamina.models.load import load_model
from lamina.models.manifest import describe_model, find_model, load_skeleton
from lamina.options.models import Model
from tests.given import tiny

REFERENCE = Path(__file__).parents[2] / "resources/reference"
ENTRY = Model(source="somewhere", dtype="float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(REFERENCE / name, tmp_path / name)
    return tmp_path


def settings(folder: Path, **changes: Any) -> None:
    """Change config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def told(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: settings(folder, **changes)


@pytest.mark.parametrize(
    ("change", "entry", "said"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 100),
            {},
            "not a complete safetensors",
        ),
        (told(), {"layers": 32}, "models.mine.layers: says 32.*Write 12"),
        (
            told(),
            {"family": "qwen2"},
            "models.mine.family: says qwen2, but the model is llama. Write llama.",
        ),
        (
            told(num_hidden_layers=10**7),
            {},
            "source: .*config.json.*num_hidden_layers: 10000000.*no model has",
        ),
        (told(num_hidden_layers=-1), {}, "which no model has"),
        (told(text_config=[1]), {}, "is not JSON"),
    ],
)
def test_a_folder_that_is_not_what_its_entry_says_is_refused(
    folder: Path, change: Callable[[Path], object], entry: dict[str, Any], said: str
) -> None:
    assert (
        describe_model("mine", ENTRY.model_copy(update={"family": "llama"}), folder)["family"]
        == "llama"
    )
    change(folder)
    with pytest.raises(LaminaError, match=said):
        describe_model("mine", ENTRY.model_copy(update=entry), folder)


@pytest.mark.parametrize("kind", ["auto_map", "file"])
def test_code_in_the_folder_is_refused_unless_allowed(folder: Path, kind: str) -> None:
    if kind == "file":
        (folder / "modeling_mine.py").write_text("raise SystemExit('this must never run')\n")
    else:
        settings(folder, auto_map={"AutoModelForCausalLM": "modeling_mine.X"})
    with pytest.raises(LaminaError, match="own Python code.*trust_remote_code: true.*models.mine"):
        describe_model("mine", ENTRY, folder)
    trusted = ENTRY.model_copy(update={"trust_remote_code": True})
    if kind == "file":
        assert describe_model("mine", trusted, folder)["n_layers"] == 12
    else:  # transformers looks for the code
        with pytest.raises(LaminaError, match="does not load: .*modeling_mine.py"):
            describe_model("mine", trusted, folder)


def test_a_hub_model_that_cannot_be_had_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch
) -> None:
    """Off the network, as every compute job is; the hub itself says the same for unknown and gated models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(
        LaminaError, match="models.mine.source: 'nobody/no-such-model'.*(hf download|hf auth login)"
    ):
        find_model(
            "mine",
            ENTRY.model_copy(update={"source": "nobody/no-such-model", "revision": "main"}),
            tmp_path,
        )


def test_the_fingerprint_follows_content_not_time(folder: Path) -> None:
    before = fingerprint_model(folder)
    (folder / "model.safetensors").touch()
    assert fingerprint_model(folder) == before
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(data))
    assert fingerprint_model(folder) != before


def test_the_users_home_is_found(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("mine", Model(source=f"~/{folder.name}"), Path("/")) == folder
    for gone in ("~nobody_of_that_name/model", "./gone"):
        with pytest.raises(LaminaError, match=f"models.mine.source: there is no folder '{gone}'"):
            find_model("mine", Model(source=gone), Path("/"))


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
    assert stated_context(settings) == tokens


def test_a_dtype_that_there_is_not_ends_with_the_folders_name(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path)
    settings(tmp_path, dtype="Q9", torch_dtype="Q9")
    manifest = {
        "path": str(tmp_path),
        "source": "mine",
        "trust_remote_code": False,
        "dtype": "auto",
    }
    with pytest.raises(LaminaError, match="the model 'mine' in .* does not load"):
        load_model(manifest)
    with pytest.raises(LaminaError, match="the model 'mine' in .* does not load"):
        load_skeleton(tmp_path, "mine", False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's folder with a model, in which a run has begun."""
    tiny.model().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)


def prepared() -> dict[str, Any]:
    entry = Model(source="model", dtype="float32")
    return describe_model("mine", entry, find_model("mine", entry, Path.cwd()))


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_weights_count_in_the_type_they_are_loaded_with(
    folder: Path, dtype: str, width: int
) -> None:
    manifest = describe_model("mine", ENTRY.model_copy(update={"dtype": dtype}), folder)
    assert manifest["weights_bytes"] == width * manifest["parameters"]


def test_weights_that_changed_after_preparation_are_refused(project: None) -> None:
    manifest = prepared()
    load_model(manifest)
    tiny.model(seed=1).save_pretrained("model")
    with pytest.raises(LaminaError, match="weights of the model 'model' .* not what they were"):
        load_model(manifest)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_so_do_a_configuration_and_a_tokenizer(file: str, project: None) -> None:
    tiny.tokenizer().save_pretrained("model")
    manifest = prepared()
    Path("model", file).write_text(Path("model", file).read_text() + "\n")
    with pytest.raises(LaminaError, match="configuration or tokenizer of the model"):
        load_model(manifest)


def test_files_that_are_as_prepared_are_not_hashed_again(
    project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = prepared()
    hashed: list[Path] = []
    hash_files = digests._hash_files

    def count_files(paths: Sequence[Path]) -> str:
        hashed.extend(paths)
        return hash_files(paths)

    monkeypatch.setattr(digests, "_hash_files", count_files)
    digests.check_files(manifest)
    assert hashed == []
    Path("model/model.safetensors").touch()
    digests.check_files(manifest)
    assert Path("model/model.safetensors") in hashed
    assert Path("model/config.json") in hashed


def test_a_dequantised_checkpoint_is_named_by_what_its_files_hold(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # some megabytes
    first = tmp_path / "first.gguf"
    first.write_bytes(content)
    name = checkpoint_name(first, "auto")
    second = tmp_path / "second.gguf"
    shutil.copyfile(first, second)
    assert checkpoint_name(second, "auto") == name
    assert checkpoint_name(second, "bfloat16") != name
    for changed in (b"x" + content[1:], content[:-1] + b"x", content + b"x"):
        second.write_bytes(changed)
        assert checkpoint_name(second, "auto") != name
    (tmp_path / "tokenizer.json").write_text("{}")
    assert checkpoint_name(first, "auto") != name
    shards = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for shard in shards:
        shard.write_bytes(content)
    name = checkpoint_name(shards[0], "auto")
    shards[1].write_bytes(content[:-1] + b"x")
    assert checkpoint_name(shards[0], "auto") != name


def test_a_quantised_folder_is_named_by_what_it_holds(folder: Path) -> None:
    name = checkpoint_name(folder, "auto")
    moved = folder.with_name("moved")
    shutil.copytree(folder, moved)
    assert checkpoint_name(moved, "auto") == name
    settings(moved, note="another one")
    assert checkpoint_name(moved, "auto") != name

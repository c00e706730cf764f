"""A folder whose weights and configuration are of different models is refused, with the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lamina.errors import LaminaError
from lamina.models.load import load_folder, load_tokenizer
from lamina.models.manifest import describe_model, load_skeleton
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from tests.given import tiny
from tests.given.configurations import minimal_config, write_model_and_data
from tests.given.model_folders import (
    State,
    change_config,
    change_weights,
    manifest_of,
    save_model,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama of 5 layers with its tokenizer."""
    return save_model(tmp_path / "model")


def describe(folder: Path) -> dict[str, Any]:
    return describe_model("mine", Model(source=str(folder), dtype="auto"), folder)


def unchanged(state: State) -> State:
    return state


def with_prefix(prefix: str) -> Callable[[State], State]:
    """Every tensor under another name."""
    return lambda state: {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[State], State]:
    """One tensor more in the first layer."""
    return lambda state: state | {f"model.layers.0.{name}": tensor}


def without_tensors(name_part: str) -> Callable[[State], State]:
    return lambda state: {name: state[name] for name in state if name_part not in name}


@pytest.mark.parametrize(
    ("change", "config_changes", "message"),
    [
        (
            without_tensors("layers.1.mlp.up"),
            {},
            "no weights for model.layers.1.mlp.up_proj.weight.* would be random",
        ),
        (unchanged, {"num_hidden_layers": 99, "layer_types": None}, "has no weights"),
        (unchanged, {"intermediate_size": 7}, "another shape"),
        (
            with_tensor("self_attn.k_proj.bias", torch.ones(16)),
            {},
            "k_proj.bias, which its config.json does not ask for.*attention_bias",
        ),
        (
            unchanged,
            {"num_hidden_layers": 3},
            r"stores model.layers.3.* more, which its config.json does not ask for",
        ),
        (with_prefix("policy"), {}, "has the extra prefix 'policy.' in the names of its weights"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_not_loaded(
    folder: Path,
    change: Callable[[State], State],
    config_changes: dict[str, Any],
    message: str,
) -> None:
    change_weights(folder, change)
    change_config(folder, **config_changes)
    with pytest.raises(LaminaError, match=message):
        load_folder(folder, "auto", False)


def test_quantised_weights_of_which_the_configuration_says_nothing_are_refused(
    folder: Path,
) -> None:
    quantised_weight = torch.ones(32, 32, dtype=torch.int8)
    change_weights(folder, with_tensor("self_attn.q_proj.weight", quantised_weight))
    with pytest.raises(LaminaError, match="models.mine.source: .*q_proj.weight .I8.: .*quantise"):
        describe(folder)


def test_layers_that_predict_later_tokens_are_not_counted(folder: Path) -> None:
    change_config(folder, num_hidden_layers=4, num_nextn_predict_layers=1)
    assert describe(folder)["n_layers"] == 4


def test_masks_and_frequencies_of_old_checkpoints_are_no_weights(folder: Path) -> None:
    buffer_names = (
        "self_attn.rotary_emb.cos_cached",
        "position_ids",
        "self_attn.rotary_emb.inv_freq",
        "attn.masked_bias",
    )
    buffers = {f"model.layers.0.{name}": torch.ones(4) for name in buffer_names}
    change_weights(folder, lambda state: state | buffers)

    expected_state = tiny.model().state_dict()
    for name, tensor in load_folder(folder, "auto", False).state_dict().items():
        assert torch.equal(tensor, expected_state[name])


def test_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    tiny.model(tie_word_embeddings=False).save_pretrained(tmp_path)
    assert load_folder(tmp_path, "auto", False)

    change_config(tmp_path, tie_word_embeddings=True)

    message = r"lm_head.weight and model.embed_tokens.weight with different values.*: false"
    with pytest.raises(LaminaError, match=message):
        load_folder(tmp_path, "auto", False)


def test_tied_weights_that_are_stored_twice_are_one_parameter(tmp_path: Path) -> None:
    tiny.model(tie_word_embeddings=False).save_pretrained(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)

    def copy_embedding(state: State) -> State:
        return state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()}

    change_weights(tmp_path, copy_embedding)

    model = load_folder(tmp_path, "auto", False)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert describe(tmp_path)["parameters"] == count_parameters(model)


def count_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_sizes_are_those_of_the_loaded_model(folder: Path) -> None:
    manifest = describe(folder)
    model = tiny.model()
    assert manifest["n_layers"] == 5
    assert manifest["hidden_size"] == 32
    assert manifest["family"] == "llama"
    assert manifest["parameters"] == count_parameters(model)
    assert manifest["weights_bytes"] == 4 * count_parameters(model)
    assert manifest["layer_parameters"] == count_parameters(model.model.layers) // 5
    for layer, counted in zip(model.model.layers, manifest["layers"], strict=True):
        assert counted == {
            "attention_parameters": count_parameters(layer.self_attn),
            "mlp_parameters": count_parameters(layer.mlp),
            "active_mlp_parameters": count_parameters(layer.mlp),
            "other_parameters": count_parameters(layer.input_layernorm)
            + count_parameters(layer.post_attention_layernorm),
            "kind": 0,
        }
    assert manifest["head_parameters"] == count_parameters(model.lm_head)


def test_the_type_behind_auto_is_named(folder: Path) -> None:
    assert describe(folder)["dtype"] == "auto"
    assert describe(folder)["loaded_dtype"] == "float32"


def test_the_share_of_attention_counts_parameters_and_bytes_read_per_token(folder: Path) -> None:
    layers = tiny.model().model.layers
    attention = sum(count_parameters(layer.self_attn) for layer in layers)
    mlp = sum(count_parameters(layer.mlp) for layer in layers)
    # Keys and values of two heads of eight channels, for as many tokens as the model takes.
    cache = 5 * 2 * 16 * tiny.CONFIGS["llama"]["max_position_embeddings"]

    share = describe(folder)["attention_share"]

    assert share["parameters"] == pytest.approx(attention / (attention + mlp))
    assert share["latency"] == pytest.approx((attention + cache) / (attention + cache + mlp))


def test_a_consolidated_file_beside_the_weights_counts_for_nothing(folder: Path) -> None:
    before = describe(folder)
    save_file({"other": torch.zeros(1000)}, folder / "consolidated.safetensors")
    after = describe(folder)
    for key in ("parameters", "layer_parameters", "weights_bytes", "weights_sha256"):
        assert after[key] == before[key]


def shard_weights(folder: Path, **index_changes: str) -> None:
    """Split the weights into two files with an index; the last layer is in the second file."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first_shard: State = {}
    second_shard: State = {}
    weight_map: dict[str, str] = {}
    for name, tensor in state.items():
        if "layers.4" in name:
            second_shard[name] = tensor
            weight_map[name] = "model-2.safetensors"
        else:
            first_shard[name] = tensor
            weight_map[name] = "model-1.safetensors"
    save_file(first_shard, folder / "model-1.safetensors")
    save_file(second_shard, folder / "model-2.safetensors")
    index = {"metadata": {}, "weight_map": weight_map | index_changes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_names_files_that_are_there(folder: Path) -> None:
    shard_weights(folder, more="model-3.safetensors")
    message = "models.mine.source: .*names model-3.safetensors, which is not there"
    with pytest.raises(LaminaError, match=message):
        describe(folder)


def test_shards_are_one_model(folder: Path) -> None:
    shard_weights(folder)
    manifest = describe(folder)
    assert manifest["n_layers"] == 5
    assert manifest["parameters"] == count_parameters(tiny.model())


def test_an_index_is_read_only_where_there_are_shards(folder: Path) -> None:
    weights = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(load_file(weights), weights.name)}))
    assert describe(folder)["n_layers"] == 5

    index.write_text(index.read_text().replace(weights.name, "model-1.safetensors"))
    weights.rename(folder / "model-1.safetensors")
    with pytest.raises(LaminaError, match="index.json is damaged .*metadata"):
        describe(folder)


def test_of_two_checkpoints_the_one_that_transformers_loads_is_described(folder: Path) -> None:
    manifest = describe(folder)
    shard_weights(folder)
    tiny.model().save_pretrained(folder)
    assert describe(folder)["weights_sha256"] == manifest["weights_sha256"]


FolderChange = Callable[[Path], object]


def rename_weights(name: str) -> FolderChange:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def remove_file(name: str) -> FolderChange:
    return lambda folder: (folder / name).unlink()


def set_config(**changes: Any) -> FolderChange:
    return lambda folder: change_config(folder, **changes)


def rename_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer_config.json")


def turn_into_adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            rename_weights("pytorch_model.bin"),
            "has no model.safetensors and no model.safetensors.index.json, but pytorch_model.bin.",
        ),
        (rename_weights("small-q4.gguf"), "but small-q4.gguf. Download the model again"),
        (remove_file("model.safetensors"), "has no model.safetensors and no"),
        (remove_file("tokenizer.json"), "has no tokenizer. Put tokenizer.json"),
        (rename_tokenizer, "has no tokenizer. Put"),
        (
            turn_into_adapter,
            "holds an adapter (adapter_config.json). Merge it into its base model",
        ),
        (
            set_config(num_hidden_layers="8"),
            "says `num_hidden_layers: 8`, which no model has",
        ),
        (set_config(quantization={"bits": 4}), "is quantised (mlx)"),
    ],
)
def test_what_cannot_be_loaded_is_refused_when_the_configuration_is_read(
    tmp_path: Path, change: FolderChange, message: str
) -> None:
    write_model_and_data(tmp_path)
    assert load_configuration(minimal_config(), tmp_path)
    change(tmp_path / "small")
    with pytest.raises(LaminaError) as refusal:
        load_configuration(minimal_config(), tmp_path)
    assert str(refusal.value).startswith("models.small.source: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "hqq"])
def test_a_folder_in_a_quantised_format_that_is_not_dequantised_is_refused(
    tmp_path: Path, method: str
) -> None:
    write_model_and_data(tmp_path)
    change_config(tmp_path / "small", quantization_config={"quant_method": method})
    message = rf"^models.small.source: .* is quantised \({method}\), but .* Write the checkpoint"
    with pytest.raises(LaminaError, match=message):
        load_configuration(minimal_config(), tmp_path)


def test_layer_types_that_do_not_fit_are_a_fault_of_the_configuration(folder: Path) -> None:
    change_config(folder, layer_types=["full_attention"] * 6)
    message = "the model 'mine' in .* does not load: .*layer_types.*config.json"
    with pytest.raises(LaminaError, match=message):
        load_tokenizer(manifest_of(folder))
    with pytest.raises(LaminaError, match=message):
        load_skeleton(folder, "mine", False)


def test_a_flag_makes_no_encoder_of_a_family_of_decoders(tmp_path: Path) -> None:
    """All folders of Pythia say `is_decoder: false`; encoders are refused in test_manifest."""
    tiny.model("gpt_neox").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_decoder"] is False
    assert describe(tmp_path)["n_layers"] == 5

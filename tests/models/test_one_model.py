"""A folder's tensors, its configuration and its tokenizer are of one model, or the folder is refused."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoModelForCausalLM

from lamina.data.encoding import open_encoder
from lamina.data.prepare import text_samples
from lamina.errors import LaminaError
from lamina.evaluation.perplexity import open_benchmark
from lamina.evaluation.together import Together
from lamina.models import gguf
from lamina.models.dequantise import dequantise_model
from lamina.models.load import load_folder, load_tokenizer
from lamina.models.manifest import describe_model, load_skeleton
from lamina.options.benchmarks import TextEntry
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from tests.given import gguf_files, tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.models.test_manifest import settings, told

State = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama of 5 layers with its tokenizer."""
    tiny.model().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def weights(folder: Path, change: Callable[[State], State]) -> None:
    """Write the weights anew."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def described(folder: Path) -> dict[str, Any]:
    return describe_model("mine", Model(source=str(folder), dtype="auto"), folder)


def prefixed(word: str) -> Callable[[State], State]:
    return lambda state: {f"{word}.{name}": value for name, value in state.items()}


def more(name: str, value: torch.Tensor) -> Callable[[State], State]:
    return lambda state: state | {f"model.layers.0.{name}": value}


def but(part: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "changes", "said"),
    [
        (
            but("layers.1.mlp.up"),
            {},
            "no weights for model.layers.1.mlp.up_proj.weight.* would be random",
        ),
        (dict, {"num_hidden_layers": 99, "layer_types": None}, "has no weights"),
        (dict, {"intermediate_size": 7}, "another shape"),
        (
            more("self_attn.k_proj.bias", torch.ones(16)),
            {},
            "k_proj.bias, .* no place.*attention_bias",
        ),
        (
            dict,
            {"num_hidden_layers": 3},
            r"stores model.layers.3.* more, for which its config.json has no place",
        ),
        (prefixed("policy"), {}, "under other names: 'policy.' is before each"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_not_loaded(
    folder: Path, change: Callable[[State], State], changes: dict[str, Any], said: str
) -> None:
    weights(folder, change)
    settings(folder, **changes)
    with pytest.raises(LaminaError, match=said):
        load_folder(folder, "auto", False)


def test_quantised_weights_of_which_the_configuration_says_nothing_are_refused(
    folder: Path,
) -> None:
    weights(folder, more("self_attn.q_proj.weight", torch.ones(32, 32, dtype=torch.int8)))
    with pytest.raises(LaminaError, match="models.mine.source: .*q_proj.weight .I8.: .*quantise"):
        described(folder)


def test_layers_that_predict_later_tokens_are_not_counted(folder: Path) -> None:
    settings(folder, num_hidden_layers=4, num_nextn_predict_layers=1)
    assert described(folder)["n_layers"] == 4


def test_masks_and_frequencies_of_old_checkpoints_are_no_weights(folder: Path) -> None:
    names = (
        "self_attn.rotary_emb.cos_cached",
        "position_ids",
        "self_attn.rotary_emb.inv_freq",
        "attn.masked_bias",
    )
    weights(
        folder, lambda state: state | {f"model.layers.0.{name}": torch.ones(4) for name in names}
    )
    wanted, found = tiny.model().state_dict(), load_folder(folder, "auto", False).state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_tied_weights_are_one_or_the_model_is_refused(tmp_path: Path) -> None:
    tiny.model(tie_word_embeddings=False).save_pretrained(tmp_path)
    assert load_folder(tmp_path, "auto", False)
    settings(tmp_path, tie_word_embeddings=True)
    with pytest.raises(
        LaminaError,
        match=r"lm_head.weight and model.embed_tokens.weight with different numbers.*: false",
    ):
        load_folder(tmp_path, "auto", False)
    weights(
        tmp_path,
        lambda state: state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()},
    )
    model = load_folder(tmp_path, "auto", False)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert described(tmp_path)["parameters"] == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_sizes_are_those_of_what_is_loaded(folder: Path) -> None:
    alone = described(folder)
    save_file({"other": torch.zeros(1000)}, folder / "consolidated.safetensors")
    beside, model = described(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert (beside["n_layers"], beside["hidden_size"], beside["family"]) == (5, 32, "llama")
    facts = ("parameters", "layer_parameters", "weights_bytes", "weights_sha256")
    assert [alone[fact] for fact in facts] == [beside[fact] for fact in facts]
    assert (
        beside["parameters"]
        == sum(each.numel() for each in model.parameters())
        == beside["weights_bytes"] / 4
    )
    layers = sum(each.numel() for each in model.model.layers.parameters())
    assert beside["layer_parameters"] == layers // 5
    attention, mlp = (
        sum(
            each.numel()
            for layer in model.model.layers
            for each in getattr(layer, part).parameters()
        )
        for part in ("self_attn", "mlp")
    )
    # Keys and values of two heads of eight channels, for as many tokens as the model takes.
    cached = 5 * 2 * 16 * model.config.max_position_embeddings
    latency = (attention + cached) / (attention + cached + mlp)
    assert beside["attention_share"] == pytest.approx(
        dict(parameters=attention / (attention + mlp), latency=latency)
    )


def sharded(folder: Path, **places: str) -> None:
    """Two files and their index; `places` are entries of it (dots written __)."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-{1 + ('layers.4' in name)}.safetensors" for name in state}
    for shard in set(shards.values()):
        save_file(
            {name: value for name, value in state.items() if shards[name] == shard}, folder / shard
        )
    shards |= {name.replace("__", "."): shard for name, shard in places.items()}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": shards})
    )


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"more": "model-3.safetensors"}, "names model-3.safetensors, which is not there"),
    ],
)
def test_an_index_leads_to_files_that_are_there(folder: Path, places: dict, said: str) -> None:
    sharded(folder)
    assert described(folder)["n_layers"] == 5
    (folder / "model.safetensors.index.json").unlink()
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    tiny.model().save_pretrained(folder)
    sharded(folder, **places)
    with pytest.raises(LaminaError, match=f"models.mine.source: .*{said}"):
        described(folder)


def test_an_index_without_metadata_is_refused_where_it_is_read(folder: Path) -> None:
    alone, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(load_file(alone), alone.name)}))
    assert described(folder)["n_layers"] == 5  # the whole file is read, and not the index
    index.write_text(index.read_text().replace(alone.name, "model-1.safetensors"))
    alone.rename(folder / "model-1.safetensors")
    with pytest.raises(LaminaError, match="index.json is damaged .*metadata"):
        described(folder)


def test_of_two_checkpoints_the_one_that_transformers_loads_is_described(folder: Path) -> None:
    alone = described(folder)
    sharded(folder)
    tiny.model().save_pretrained(folder)
    assert described(folder)["weights_sha256"] == alone["weights_sha256"]


def renamed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')


def quantised(method: str) -> tuple[Callable[[Path], object], str]:
    said = f"is quantised ({method}), and layers are measured and cut in floating point. Write the checkpoint"
    return told(quantization_config={"quant_method": method}), said


REFUSED_BEFORE_A_JOB = [
    (
        renamed("pytorch_model.bin"),
        "has no model.safetensors and no model.safetensors.index.json, but pytorch_model.bin.",
    ),
    (renamed("small-q4.gguf"), "but small-q4.gguf. Download the model again"),
    (without("model.safetensors"), "has no model.safetensors and no"),
    (without("tokenizer.json"), "has no tokenizer. Put tokenizer.json"),
    (
        lambda folder: (folder / "tokenizer.json").rename(folder / "tokenizer_config.json"),
        "has no tokenizer. Put",
    ),
    (told(num_hidden_layers="8"), "says `num_hidden_layers: 8`, which no model has"),
    (told(quantization={"bits": 4}), "is quantised (mlx)"),
    (adapter, "holds an adapter (adapter_config.json). Merge it into its base model"),
    *(quantised(method) for method in ("gptq", "awq", "compressed-tensors", "hqq")),
]


@pytest.mark.parametrize(
    ("change", "said"), REFUSED_BEFORE_A_JOB, ids=[said[:40] for _, said in REFUSED_BEFORE_A_JOB]
)
def test_what_cannot_be_loaded_is_refused_when_the_configuration_is_read(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    write_model_and_data(tmp_path)
    assert load_configuration(minimal_config(), tmp_path)
    change(tmp_path / "small")
    with pytest.raises(LaminaError) as refused:
        load_configuration(minimal_config(), tmp_path)
    assert str(refused.value).startswith("models.small.source: ") and said in str(refused.value), (
        refused.value
    )


def test_a_chat_template_that_there_is_not_is_refused_when_the_configuration_is_read(
    tmp_path: Path,
) -> None:
    write_model_and_data(tmp_path)
    raw = set_key(minimal_config(), "models.small.chat_template", True)
    with pytest.raises(LaminaError, match=r"^models.small.chat_template: .* has no chat template"):
        load_configuration(raw, tmp_path)
    (tmp_path / "small/chat_template.jinja").write_text("{{ messages }}")
    assert load_configuration(raw, tmp_path)


@pytest.mark.parametrize(
    ("template", "system", "said"),
    [
        ("{% for m in %}", None, "TemplateSyntaxError"),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
            None,
            "no system",
        ),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
            "Be short.",
            "",
        ),
    ],
)
def test_a_chat_template_is_tried_with_what_it_will_be_given(
    folder: Path, template: str, system: str | None, said: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    manifest = {"path": str(folder), "source": "mine", "trust_remote_code": False}
    manifest |= {"chat_template": True, "system_prompt": system}
    if not said:
        assert load_tokenizer(manifest)
        return
    with pytest.raises(
        LaminaError, match=rf"the chat template of the model 'mine' .*{said}.*chat_template.jinja"
    ):
        load_tokenizer(manifest)


def test_a_fault_of_the_configuration_is_none_of_the_tokenizer(folder: Path) -> None:
    settings(folder, layer_types=["full_attention"] * 6)
    manifest = {"path": str(folder), "source": "mine", "trust_remote_code": False}
    said = "the model 'mine' in .* does not load: .*layer_types.*config.json"
    with pytest.raises(LaminaError, match=said):
        load_tokenizer(manifest)
    with pytest.raises(LaminaError, match=said):
        load_skeleton(folder, "mine", False)


def test_a_token_beyond_the_embedding_is_refused_where_samples_are_made(folder: Path) -> None:
    tokenizer, vocabulary = tiny.tokenizer(), tiny.VOCABULARY
    tokenizer.add_tokens(["[PAD]"])
    said = rf"holds \[PAD\], token {vocabulary} of the tokenizer, and the model has embeddings of {vocabulary} tokens"
    texts = ["w1 w2 w3", "w1 [PAD] w2"]
    assert len(text_samples(texts[:1], tokenizer, 9, vocabulary)) == 1
    with pytest.raises(LaminaError, match=rf"document 1 \('w1 \[PAD\] w2…'\) {said}"):
        text_samples(texts, tokenizer, 9, vocabulary)
    model = load_folder(folder, "auto", False)
    score = open_benchmark("held", texts, tokenizer, TextEntry(text="x", window=8))
    with pytest.raises(LaminaError, match=rf"benchmarks.perplexity.held: document 1 {said}"):
        score(model, "base", Together(model, {}))
    lm = open_encoder(model, tokenizer)
    assert lm.tok_encode("w1 w2")
    with pytest.raises(LaminaError, match=rf"the question '…w1 \[PAD\]' {said}"):
        lm.tok_encode("w1 [PAD]")


def test_a_tokenizer_that_ends_every_text_is_refused(folder: Path) -> None:
    tokenizer = tiny.tokenizer()
    manifest = {"path": str(folder), "source": "mine", "trust_remote_code": False}
    special = [("<s>", 1), ("</s>", 2)]
    for single in ("<s> $A", "$A </s>", "<s> $A </s>"):
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=special
        )
        tokenizer.save_pretrained(folder)
        if single.endswith("A"):
            assert load_tokenizer(manifest)("w1")["input_ids"][0] == 1
            continue
        with pytest.raises(
            LaminaError, match=r"'mine' puts </s> after every text.*\"add_eos_token\": false"
        ):
            load_tokenizer(manifest)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"add_bos_token": True}, ""),
        ({"add_eos_token": True}, "puts <|im_end|> behind every text"),
        ({"unknown_token_id": 9}, ""),
    ],
)
def test_flags_of_a_gguf_tokenizer_are_kept_or_refused(
    tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", flags=flags)
    if said:
        with pytest.raises(LaminaError) as refused:
            dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
        assert said in str(refused.value) and "Put the model's tokenizer.json" in str(refused.value)
        return
    dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")
    found = load_tokenizer({"path": str(tmp_path / "checkpoint"), "trust_remote_code": False})
    assert (found("in")["input_ids"][0] == 1) == flags.get("add_bos_token", False)
    assert found.unk_token_id == flags.get("unknown_token_id", 0)


def another_number(key: bytes, number: int) -> Callable[[bytes], bytes]:
    """A change of the 4 bytes that stand behind a key and its kind."""

    def change(data: bytes) -> bytes:
        place = data.index(key) + len(key) + 4
        return data[:place] + struct.pack("<I", number) + data[place + 4 :]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: data.replace(b"ffn_gate", b"ffn_gatx"),
            r"source: .*has no weights for model.layers.0.mlp.gate_proj.weight.* random",
        ),
        (
            another_number(b"llama.block_count", 0),
            "source: .*says `llama.block_count: 0`, which no model has",
        ),
        (
            another_number(b"llama.block_count", 2),
            r"source: .*stores 3 layers, the last one 2, and says `.*count: 2`",
        ),
        (
            another_number(b"llama.attention.head_count", 0),
            r"source: .*does not load: ZeroDivisionError.*Convert it",
        ),
        (
            another_number(b"llama.feed_forward_length", 80),
            r"source: .*has weights of another shape|numbers and its mod",
        ),
        (
            another_number(b"ggml.bos_token_id", 9999),
            r"source: .*the token 9999 for bos, and a vocabulary of \d+ tokens.*tokenizer.json",
        ),
    ],
)
def test_a_gguf_file_whose_parts_do_not_fit_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    file = tmp_path / "tiny.gguf"
    gguf_files.write(file)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(LaminaError, match=said):
        gguf.read_shape(file, "source")
        dequantise_model(file, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_a_flag_makes_no_encoder_of_a_family_of_decoders(tmp_path: Path) -> None:
    """All folders of Pythia say `is_decoder: false`; encoders are refused in test_manifest."""
    tiny.model("gpt_neox").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_decoder"] is False
    assert described(tmp_path)["n_layers"] == 5


def setting(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


# Settings, tensors and the body of a GGUF header, and words of the refusal.
HOSTILE = {
    "a text without end": (
        1,
        0,
        setting("general.name", 8, struct.pack("<Q", 1 << 62) + b"x"),
        f"the text of 'general.name' would take {1 << 62} bytes",
    ),
    "a list without end": (
        1,
        0,
        setting("a", 9, struct.pack("<IQ", 0, 1 << 62)),
        f"the list 'a' would take {1 << 62} bytes",
    ),
    "a list of texts without end": (
        1,
        0,
        setting("a", 9, struct.pack("<IQ", 8, 1 << 62)),
        f"claims to have {1 << 62} texts in 'a'",
    ),
    "a list of texts behind the end": (
        1,
        0,
        setting("a", 9, struct.pack("<IQQ", 8, 3, 1 << 63)),
        "'a' would be a list of 3 texts",
    ),
    "a list of lists without end": (
        1,
        0,
        setting("a", 9, struct.pack("<IQ", 9, 1 << 62)),
        "a value of the unknown kind 9 under 'a'",
    ),
    "settings without end": (1 << 62, 0, b"", f"claims to have {1 << 62} settings"),
    "tensors without end": (0, 1 << 62, b"", f"claims to have {1 << 62} tensors"),
    "a million empty tensors": (
        0,
        1_000_000,
        struct.pack("<QIIQ", 0, 0, 0, 0) * 1_000_000,
        "claims to have 1000000 tensors",
    ),
    "two tensors of one name": (
        0,
        2,
        struct.pack("<QIIQ", 0, 0, 0, 0) * 2,
        "has the tensor '' twice",
    ),
    "dimensions without end": (0, 1, struct.pack("<QI", 0, 1 << 30), "1073741824 dimensions"),
    "layers without end": (
        *(2, 0, setting("general.architecture", 8, struct.pack("<Q", 5) + b"llama")),
        "says `llama.block_count: 9223372036854775808`, which no model has",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_does_not_end_is_refused(tmp_path: Path, name: str) -> None:
    settings, tensors, body, said = HOSTILE[name]
    if "block_count" in said:
        body += setting("llama.block_count", 10, struct.pack("<Q", 1 << 63))
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, settings) + body)
    before = time.process_time()
    with pytest.raises(LaminaError) as refused:
        gguf.read_shape(tmp_path / "x.gguf", "here")
    assert time.process_time() - before < 1
    assert str(refused.value).startswith("here: ") and "x.gguf" in str(refused.value)
    assert said in str(refused.value)

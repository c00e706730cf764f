"""What an export holds and refuses, and `lamina.load` of everything that it can name."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    dynamic_module_utils,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import lamina
from lamina.errors import LaminaError
from lamina.models.boundary import Patch, share_weights
from lamina.models.export import own_code, save
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import remove_units
from lamina.repair import patch
from lamina.store import parquet
from tests.families import configurations
from tests.families.test_families import base_folder, plan_of, random_adapter, source_of
from tests.given import tiny


@pytest.fixture(autouse=True)
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of exports is copied here before it is imported, and not into the user's cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@torch.no_grad()
def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits


def random_patches(
    *boundaries: tuple[int, int], scale: float = 0.1
) -> dict[tuple[int, int], Patch]:
    generator = torch.Generator().manual_seed(5)
    return {
        boundary: Patch(torch.randn(32, 32, generator=generator) * scale) for boundary in boundaries
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder as the workflow leaves it, with a base model, a plan, a patch and an adapter."""
    folder, base = base_folder(tmp_path / "base"), tiny.model()
    base.save_pretrained(folder)
    results, key = tmp_path / "results", "tiny/words/cosine"
    manifest = {
        "path": str(folder),
        "source": str(folder),
        "dtype": "float32",
        "trust_remote_code": False,
    }
    parquet.write_text(results / "models/tiny/manifest.json", json.dumps(manifest))
    parquet.write_text(results / f"plans/{key}/removed=2.json", json.dumps(plan_of(["1", "2"])))
    operators = {
        boundary: {"operator": found.operator} for boundary, found in random_patches((1, 3)).items()
    }
    patch.write_patch(
        results / f"patches/{key}/ghost.safetensors", "ghost", patch.name_tensors(2, operators)
    )
    random_adapter(base, ["1", "2"], results / f"adapters/{key}/removed=2/ghost/lora")
    return results


def test_importing_lamina_imports_no_torch() -> None:
    code = "import lamina, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(Path(lamina.__file__).parents[1])}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        lamina.lood  # noqa: B018


def test_a_variant_is_loaded_by_its_name(results: Path) -> None:
    base, ids = tiny.model(), tiny.tokens()
    model, tokenizer = lamina.load("tiny/words/cosine/removed=2/ghost/lora", results, device="cpu")
    adapter = results / "adapters/tiny/words/cosine/removed=2/ghost/lora"
    expected = materialise(base, plan_of(["1", "2"]), random_patches((1, 3)), adapter)
    torch.testing.assert_close(logits(model, ids), logits(expected, ids))
    assert tokenizer("w1 w2")["input_ids"] == tiny.tokenizer()("w1 w2")["input_ids"]
    whole, _ = lamina.load("tiny", results, device="cpu")
    torch.testing.assert_close(logits(whole, ids), logits(base, ids), atol=1e-5, rtol=1e-5)


def test_saving_a_loaded_variant_keeps_its_patch(results: Path, tmp_path: Path) -> None:
    ids, (model, _) = (
        tiny.tokens(),
        lamina.load("tiny/words/cosine/removed=2/ghost/none", results, device="cpu"),
    )
    model.save_pretrained(tmp_path / "saved")
    again = load_folder(tmp_path / "saved", "auto", trust_remote_code=True)
    torch.testing.assert_close(logits(again, ids), logits(model, ids))


UNSAVEABLE: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},  # each layer divides by its number
    "jamba": {},  # which layers are attention follows from their number
}


@pytest.mark.parametrize("family", UNSAVEABLE)
def test_a_save_that_would_be_another_model_is_refused_as_its_export_is(
    family: str, results: Path, tmp_path: Path
) -> None:
    """Without layer 2, transformers would load the layers behind it with other numbers."""
    base = configurations.model(family, **UNSAVEABLE[family])
    folder = base_folder(tmp_path / family)
    base.save_pretrained(folder)
    manifest = json.loads((results / "models/tiny/manifest.json").read_text())
    places = {"path": str(folder), "source": str(folder)}
    parquet.write_text(results / "models/tiny/manifest.json", json.dumps(manifest | places))
    parquet.write_text(
        results / "plans/tiny/words/cosine/removed=1.json", json.dumps(plan_of(["2"]))
    )
    variant, _ = lamina.load("tiny/words/cosine/removed=1/none/none", results, device="cpu")
    refusal = "does not load back as the same model"
    with pytest.raises(LaminaError, match=refusal):
        save.export_variant(base, source_of(folder, ["2"]), tmp_path / "export")
    target = tmp_path / "saved"
    target.mkdir()
    (target / "notes.txt").write_text("mine\n")
    with pytest.raises(LaminaError, match=refusal):
        variant.save_pretrained(target)
    assert [file.name for file in target.iterdir()] == ["notes.txt"]


def test_a_saved_variant_replaces_the_weights_that_were_there(
    results: Path, tmp_path: Path
) -> None:
    """Shards of an earlier model would be read in place of the new weights."""
    target = tmp_path / "saved"
    tiny.model().save_pretrained(target, max_shard_size="20KB")
    assert len(list(target.glob("*.safetensors"))) > 1
    parquet.write_text(
        results / "plans/tiny/words/cosine/removed=1.json", json.dumps(plan_of(["2"]))
    )
    variant, tokenizer = lamina.load("tiny/words/cosine/removed=1/none/none", results, device="cpu")
    variant.save_pretrained(target)
    tokenizer.save_pretrained(target)
    again = AutoModelForCausalLM.from_pretrained(target)
    ids = tiny.tokens()
    torch.testing.assert_close(logits(again, ids), logits(variant, ids))


def test_a_tokenizer_of_another_class_is_saved_as_it_cuts(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "model")
    tiny.model().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "GPT2Tokenizer"  # which would make another one of the vocabulary
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _, tokenizer = lamina.load(folder, device="cpu")
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    stated = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert again("w1 w2 w3")["input_ids"] == stated.encode("w1 w2 w3").ids


def test_a_materialised_variant_refuses_a_save_that_would_lose_its_patch(tmp_path: Path) -> None:
    for plan, patches in ((plan_of(["1"]), random_patches((1, 2))), (plan_of(["1.mlp"]), None)):
        with pytest.raises(LaminaError, match="lamina.models.export.save.save_variant"):
            materialise(tiny.model(), plan, patches).save_pretrained(tmp_path / "lost")
    materialise(tiny.model(), plan_of(["1"])).save_pretrained(tmp_path / "kept")


def test_an_export_is_loaded_by_its_folder_and_only_its_own_code_is_trusted(tmp_path: Path) -> None:
    base, ids, folder = tiny.model("gpt2"), tiny.tokens(), tmp_path / "export"
    patches = random_patches((1, 2))
    save.export_variant(base, source_of(base_folder(tmp_path / "base"), ["1"]), folder, patches)
    model, _ = lamina.load(folder, device="cpu")
    torch.testing.assert_close(
        logits(model, ids), logits(materialise(base, plan_of(["1"]), patches), ids)
    )
    code = folder / own_code.CODE
    code.write_text(code.read_text() + "print('anything')\n")
    with pytest.raises(LaminaError, match="trust_remote_code=True"):
        lamina.load(folder, device="cpu")
    lamina.load(folder, device="cpu", trust_remote_code=True)


PLANTED = (
    "custom_generate/generate.py",
    "generate.py",
    "tokenization_mine.py",
    "modeling_other.py",
    "lamina/__init__.py",
)


def test_no_code_in_an_exports_folder_runs_and_saving_it_again_keeps_its_patches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, folder = tiny.tokens(), tmp_path / "export"
    save.export_variant(
        tiny.model(),
        source_of(base_folder(tmp_path / "base"), ["1"]),
        folder,
        random_patches((1, 2)),
    )
    expected = logits(lamina.load(folder, device="cpu")[0], ids)
    for name in PLANTED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"print('{name} ran')\n")
    model, _ = lamina.load(folder, device="cpu")
    torch.testing.assert_close(logits(model, ids), expected)
    model.generate(ids[:1], max_new_tokens=2, do_sample=False, pad_token_id=3)
    assert "ran" not in capsys.readouterr().out
    assert (model.config.model_type, type(model).__name__) == ("lamina_llama", "LaminaForCausalLM")
    again = base_folder(tmp_path / "again")
    model.save_pretrained(again)
    torch.testing.assert_close(logits(lamina.load(again, device="cpu")[0], ids), expected)


def test_a_modeling_file_that_names_other_classes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    save.export_variant(
        tiny.model(),
        source_of(base_folder(tmp_path / "base"), ["1"]),
        folder,
        random_patches((1, 2)),
    )
    for told in (
        ("pipeline", "LlamaForCausalLM", "x"),
        ("LlamaConfig", "Trainer", "x"),
        ("no", "no", "x"),
    ):
        (folder / own_code.CODE).write_text(own_code.render_code(*told))
        with pytest.raises(LaminaError, match="not what this version of lamina"):
            lamina.load(folder, device="cpu")


def test_an_adapter_in_a_models_folder_is_refused(tmp_path: Path) -> None:
    """transformers would load the weights of the model that the adapter names."""
    tiny.model().save_pretrained(base_folder(tmp_path / "other"))
    tiny.model().save_pretrained(base_folder(tmp_path / "mine"))
    named = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "other"), "r": 1}
    (tmp_path / "mine/adapter_config.json").write_text(json.dumps(named))
    with pytest.raises(LaminaError, match="mine holds an adapter .*merge_and_unload"):
        lamina.load(tmp_path / "mine", device="cpu")


def test_an_export_is_not_pruned_again_where_that_would_shift_its_patches(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    save.export_variant(tiny.model(), source, tmp_path / "x", random_patches((1, 2)))
    model, _ = lamina.load(tmp_path / "x", device="cpu")
    with pytest.raises(LaminaError, match="itself an export"):
        remove_units(model, ["0"])


@pytest.mark.parametrize(
    ("units", "made", "pruned"),
    [
        (["10", "3"], {}, "llama-quantize --prune-layers 3,10 base-f16.gguf"),
        (["3"], {"healing": "lora"}, None),  # the base's own weights are not the export's
        (["3.mlp"], {}, None),
        (["3"], {"predicts": 1}, None),
    ],
)
def test_a_gguf_loses_the_same_layers_where_the_cut_is_all_there_is(
    units: list[str], made: dict[str, Any], pruned: str | None, tmp_path: Path
) -> None:
    base = tiny.model(depth=12, **({"num_nextn_predict_layers": 1} if made.get("predicts") else {}))
    source = source_of(
        base_folder(tmp_path / "base"), units, **{k: v for k, v in made.items() if k == "healing"}
    )
    save.export_variant(base, source, tmp_path / "export")
    card = (tmp_path / "export/README.md").read_text()
    assert "convert_hf_to_gguf.py FOLDER" in card and "vllm serve FOLDER" in card
    assert (pruned in card) if pruned else "prune-layers" not in card


@pytest.mark.parametrize(
    ("family", "units", "right"),
    [
        ("gemma3_text", ["1", "2"], True),  # one whole period
        ("gemma3_text", ["10", "11"], True),  # the last layers
        ("gemma3_text", ["3"], False),
        ("gpt_oss", ["3"], False),
        ("gemma3_text", ["1", "2", "5", "6"], True),  # two periods
        ("mistral", ["3"], True),  # a window in all layers
    ],
)
def test_the_card_names_other_programs_only_where_layers_keep_their_kinds(
    family: str, units: list[str], right: bool, tmp_path: Path
) -> None:
    pattern = ["sliding_attention", "full_attention"] * 6
    given = {} if family == "mistral" else {"layer_types": pattern}
    made = (
        configurations.model(family, num_hidden_layers=12, **given) if family == "gpt_oss" else None
    )
    base = made or tiny.model(family, depth=12, **given)
    save.export_variant(base, source_of(base_folder(tmp_path / "base"), units), tmp_path / "export")
    types = json.loads((tmp_path / "export/config.json").read_text()).get("layer_types", [])
    assert right == (types == pattern[: len(types)])
    card = (tmp_path / "export/README.md").read_text()
    assert ("convert_hf" in card) == right
    assert (
        ("Not to llama.cpp or vLLM" in card)
        == (not right and family == "gpt_oss")
        == ("vllm serve" not in card)
    )
    assert ("this cut shifts them: layer 3 is of another kind" in card) == (not right)
    assert ("prune-layers" in card) == (family == "mistral")


def through(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention in the place where vLLM puts its own; `mine` is what the model was called with."""
    module.config.seen[module.layer_idx] = given["mine"]
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * given["scaling"]
    ahead = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
    return (weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)).transpose(
        1, 2
    ), None


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2"])
def test_the_code_of_an_export_has_what_the_transformers_backend_of_vllm_builds_on(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks AutoModel for the classes, sets the attention through the configuration and loads weights by their names.

    Base class of 0.33.0: vllm/model_executor/models/transformers/base.py, choice of it: models/registry.py.
    """
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "vllm", through)
    base, ids = tiny.model(family), tiny.tokens()[:, :8]
    folder, trust = tmp_path / "export", {"trust_remote_code": True}
    save.export_variant(
        base,
        source_of(base_folder(tmp_path / "base"), ["1", "4"]),
        folder,
        random_patches((1, 2), (4, 5)),
    )
    assert "vllm serve FOLDER --trust-remote-code" in (folder / "README.md").read_text()
    config: Any = AutoConfig.from_pretrained(folder, **trust)
    assert next(name for name in config.auto_map if name.startswith("AutoModel")) == "AutoModel"
    config._attn_implementation = "vllm"
    model = AutoModel.from_config(config, **trust).eval()
    assert type(model).is_backend_compatible() and model.base_model_prefix == base.base_model_prefix
    stored, inside = load_file(folder / "model.safetensors"), f"{base.base_model_prefix}."
    lost = model.load_state_dict(
        {name.removeprefix(inside): value for name, value in stored.items()}, strict=False
    )
    assert not lost.missing_keys and set(lost.unexpected_keys) <= {"lm_head.weight"}
    config.seen = {}
    places = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        stream = model(ids, position_ids=places, use_cache=False, return_dict=False, mine="given")[
            0
        ]
    assert config.seen == dict.fromkeys(range(3), "given")
    expected = materialise(base, plan_of(["1", "4"]), random_patches((1, 2), (4, 5)))
    torch.testing.assert_close(
        base.get_output_embeddings()(stream), logits(expected, ids), atol=1e-5, rtol=1e-5
    )
    ours = AutoModel.from_pretrained(folder, **trust)
    torch.testing.assert_close(
        ours(ids, use_cache=False).last_hidden_state, stream, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("family", "units", "words"),
    [
        ("llama", ["1.attention"], "wants attention in every layer, and layer 1 has none"),
        ("llama", ["1.mlp"], "vllm serve FOLDER --trust-remote-code"),
        ("bloom", ["1.mlp"], "not called in the way that vLLM's Transformers backend replaces"),
        ("gpt2", ["1.mlp"], "not called in the way that vLLM's Transformers backend replaces"),
    ],
)
def test_the_card_of_an_export_with_code_says_whether_vllm_runs_it(
    family: str, units: list[str], words: str, tmp_path: Path
) -> None:
    source = source_of(base_folder(tmp_path / "base"), units)
    save.export_variant(tiny.model(family), source, tmp_path / "export", form="code")
    card = (tmp_path / "export/README.md").read_text()
    assert words in card and ("vllm serve" in card) == words.startswith("vllm serve")


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ("nothing", {}, "neither a folder with config.json nor known"),
        ("tiny/words/cosine/2/ghost/none", {}, "removed=n"),
        (
            "tiny/words/cosine/removed=3/none/none",
            {},
            "make export VARIANT=tiny/words/cosine/removed=3/none/none",
        ),
        ("tiny/words/cosine/removed=2/none/long", {}, "has not been made"),
        ("tiny/words/cosin/removed=2/none/none", {}, "Did you mean 'cosine'"),
        ("tiny/words/cosine/removed=2/gost/none", {}, "Did you mean 'ghost'"),
        ("tiny", {"dtype": "float8"}, "dtype: 'float8'"),
        ("tiny", {"device": "cpu", "device_map": "auto"}, "not both"),
    ],
)
def test_what_cannot_be_loaded_is_explained(
    results: Path, what: str, options: Any, words: str
) -> None:
    with pytest.raises(LaminaError, match=words):
        lamina.load(what, results, **options)


def test_weights_in_four_bits_are_near_those_of_the_folder(tmp_path: Path) -> None:
    """Each to half a step of its block. Rows that end within a block are whole where a processor computes."""
    dequantised = pytest.importorskip("bitsandbytes.functional").dequantize_4bit
    folder = base_folder(tmp_path / "base")
    tiny.model(hidden_size=64, intermediate_size=160).save_pretrained(folder)
    whole, small = (
        lamina.load(folder, dtype="float32", load_in_4bit=four)[0] for four in (False, True)
    )
    for name, module in small.named_modules():
        if type(module).__name__ == "Linear4bit":
            wanted = whole.get_submodule(name).weight
            found = dequantised(module.weight.data, module.weight.quant_state).to(wanted.device)
            scale = wanted.reshape(-1, 64).abs().amax(1, keepdim=True)
            assert ((found - wanted).reshape(-1, 64).abs() <= scale / 6 + 1e-6).all(), name
    mlp = layers_of(small)[0].mlp
    assert type(mlp.up_proj).__name__ == "Linear4bit" and type(small.lm_head).__name__ == "Linear"
    if small.device.type == "cpu":
        assert type(mlp.down_proj).__name__ == "Linear"
    assert small(tiny.tokens().to(small.device)).logits.isfinite().all()


def test_a_device_map_is_applied_after_the_surgery(results: Path) -> None:
    ids, name = tiny.tokens(), "tiny/words/cosine/removed=2/ghost/lora"
    mapped, _ = lamina.load(name, results, device_map={"": "cpu"})
    torch.testing.assert_close(
        logits(mapped, ids), logits(lamina.load(name, results, device="cpu")[0], ids)
    )


def test_a_patch_beside_float16_weights_stays_in_float32_through_an_export(tmp_path: Path) -> None:
    base, ids = tiny.model(), tiny.tokens()
    for parameter in base.parameters():
        parameter.data = parameter.data.half()
    # Entries below float16's smallest number, on channels where the stream is large.
    patches = {(1, 2): Patch(torch.full((32, 32), 1e-9), torch.full((32,), 1e-9))}
    variant = materialise(base, plan_of(["1"]), patches)
    save.export_variant(
        base, source_of(base_folder(tmp_path / "base"), ["1"]), tmp_path / "export", patches
    )
    stored = load_file(tmp_path / "export/model.safetensors")["model.layers.1.patch_operator"]
    again, _ = lamina.load(tmp_path / "export", device="cpu")
    for tensor in (
        layers_of(variant)[1].patch_operator,
        stored,
        layers_of(again)[1].patch_operator,
    ):
        assert tensor.dtype == torch.float32 and torch.equal(tensor, patches[1, 2].operator)
    assert again.dtype == torch.float16
    torch.testing.assert_close(logits(again, ids), logits(variant, ids))


def test_patch_and_adapter_together_come_back(tmp_path: Path) -> None:
    for family in ("llama", "gpt2", "gemma2"):
        base, ids, patches = tiny.model(family), tiny.tokens(), random_patches((1, 3))
        random_adapter(base, ["1", "2"], tmp_path / f"{family}-adapter")
        folder, source = tmp_path / family, source_of(base_folder(tmp_path / "base"), ["1", "2"])
        assert (
            save.export_variant(base, source, folder, patches, tmp_path / f"{family}-adapter")
            == "code"
        )
        expected = materialise(base, plan_of(["1", "2"]), patches, tmp_path / f"{family}-adapter")
        torch.testing.assert_close(
            logits(lamina.load(folder, device="cpu")[0], ids), logits(expected, ids)
        )


@pytest.mark.parametrize("units", [["1.attention", "3.attention"], ["1.mlp", "2.mlp"]])
@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_removed_halves_and_an_adapter_make_a_stock_checkpoint(
    family: str, units: list[str], tmp_path: Path
) -> None:
    base, ids = tiny.model(family), tiny.tokens()
    random_adapter(base, units, tmp_path / "adapter")
    source = source_of(base_folder(tmp_path / "base"), units, healing="lora")
    assert (
        save.export_variant(base, source, tmp_path / "export", adapter=tmp_path / "adapter")
        == "stock"
    )
    expected = logits(materialise(base, plan_of(units), None, tmp_path / "adapter"), ids)
    torch.testing.assert_close(
        logits(lamina.load(tmp_path / "export", device="cpu")[0], ids), expected
    )
    assert "saves neither memory nor time" in (tmp_path / "export/README.md").read_text()


def test_weights_are_cut_into_shards_and_tokenizer_and_licence_are_there(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    (tmp_path / "base/generation_config.json").write_text(
        '{"temperature": 0.3, "do_sample": false}'
    )
    assert (
        save.export_variant(tiny.model(), source, tmp_path / "export", max_shard_size="30KB")
        == "stock"
    )
    names = {path.name for path in (tmp_path / "export").iterdir()}
    assert {
        "model.safetensors.index.json",
        "tokenizer.json",
        "LICENSE",
        "mergekit.yaml",
        "README.md",
    } < names
    shards = sorted((tmp_path / "export").glob("model-*-of-*.safetensors"))
    assert len(shards) > 2 and all(shard.stat().st_size < 40_000 for shard in shards)
    assert (
        json.loads((tmp_path / "export/generation_config.json").read_text())["temperature"] == 0.3
    )
    assert not list(tmp_path.glob(".*"))


def test_an_earlier_export_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    for _ in range(2):
        save.export_variant(tiny.model(), source, tmp_path / "export")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(LaminaError, match="not empty and is not an export"):
        save.export_variant(tiny.model(), source, tmp_path / "mine")


def test_a_patch_is_never_exported_as_a_stock_checkpoint(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    with pytest.raises(LaminaError, match="no place for a patch"):
        save.export_variant(
            tiny.model(), source, tmp_path / "export", random_patches((1, 2)), form="stock"
        )
    assert not (tmp_path / "export").exists()


def test_the_card_says_what_was_removed_and_why_what_it_scores_and_its_licence(
    tmp_path: Path,
) -> None:
    row = {
        "task": "recall",
        "metric": "acc",
        "n_samples": 400,
        "n_shot": 0,
        "higher_is_better": True,
    }
    rows = [
        row | {"removed": 0, "value": 0.9, "stderr": 0.015},
        row | {"removed": 1, "value": 0.8, "stderr": 0.02},
    ]
    source = source_of(base_folder(tmp_path / "base"), ["3"], repair="ghost", benchmarks=rows)
    save.export_variant(tiny.model(), source, tmp_path / "export", random_patches((3, 4)))
    text = (tmp_path / "export/README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert (
        head["license"] == "apache-2.0"
        and head["base_model"] == "lab/words"
        and "custom_code" in head["tags"]
    )
    for words in (
        "revision `main`",
        "| 1 | `3` | 0.25 |",
        "strategy `one_shot`",
        "Patch `ghost`",
        "4 of its 5 layers",
    ):
        assert words in text
    assert "| recall | acc | higher | 0.9 ± 0.015 | 0.8 ± 0.02 | 400 | 0 |" in text
    assert str(tmp_path) not in text and "trust_remote_code=True" in text


def follow(recipe: dict[str, Any], base: PreTrainedModel) -> PreTrainedModel:
    """A passthrough merge as mergekit defines it: slices of layers one after another, some weights scaled."""
    built, layers = share_weights(base), []
    for part in recipe["slices"]:
        (source,) = part["sources"]
        for number in range(*source["layer_range"]):
            layer = share_weights(base).get_submodule(f"model.layers.{number}")
            for name, weight in layer.named_parameters():
                rules = source.get("parameters", {}).get("scale", [{"value": 1.0}])
                scale = next(rule["value"] for rule in rules if rule.get("filter", "") in name)
                weight.data = weight.data * scale
            layer.self_attn.layer_idx = len(layers)
            layers.append(layer)
    built.model.layers = torch.nn.ModuleList(layers)
    built.config.num_hidden_layers = len(layers)
    return built


@pytest.mark.parametrize("units", [["1", "3"], ["0", "1", "4"], ["2.attention", "3.mlp"]])
def test_the_mergekit_recipe_makes_the_same_cut(units: list[str], tmp_path: Path) -> None:
    base, ids = tiny.model(), tiny.tokens()
    save.export_variant(base, source_of(base_folder(tmp_path / "base"), units), tmp_path / "export")
    recipe = yaml.safe_load((tmp_path / "export/mergekit.yaml").read_text())
    assert recipe["merge_method"] == "passthrough"
    assert {part["sources"][0]["model"] for part in recipe["slices"]} == {"lab/words@main"}
    expected = logits(materialise(base, plan_of(units)), ids)
    torch.testing.assert_close(logits(follow(recipe, base), ids), expected)

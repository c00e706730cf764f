"""What an export and a save hold and refuse, against the variant that was exported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
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
from lamina.models.boundary import Patch
from lamina.models.export import own_code, save
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import apply_edits
from lamina.store import parquet
from tests.families import configurations
from tests.given import tiny
from tests.given.variants import (
    base_folder,
    compute_logits,
    plan_of,
    random_adapter,
    source_of,
)

Patches = dict[tuple[int, int], Patch]


@pytest.fixture(autouse=True)
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of exports is copied here before it is imported, and not into the user's cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def random_operators(*boundaries: tuple[int, int]) -> Patches:
    """A patch without bias at each boundary."""
    generator = torch.Generator().manual_seed(5)
    patches: Patches = {}
    for boundary in boundaries:
        patches[boundary] = Patch(torch.randn(32, 32, generator=generator) / 10)
    return patches


def export(
    base: PreTrainedModel,
    units: list[str],
    tmp_path: Path,
    patches: Patches | None = None,
    adapter: Path | None = None,
    form: str = "auto",
    **methods: str,
) -> Path:
    """Export `base` without these units; the folder that holds the export."""
    source = source_of(base_folder(tmp_path / "base"), units, **methods)
    save.export_variant(base, source, tmp_path / "export", patches, adapter, form)
    return tmp_path / "export"


def load_on_cpu(folder: Path) -> PreTrainedModel:
    model, _ = lamina.load(folder, device="cpu")
    return model


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with the manifest of a base model and a plan of one layer."""
    base = base_folder(tmp_path / "tiny")
    tiny.model().save_pretrained(base)
    results = tmp_path / "results"
    write_manifest(results, base)
    write_plan(results, ["2"])
    return results


def write_manifest(results: Path, base: Path) -> None:
    manifest = {
        "path": str(base),
        "source": str(base),
        "dtype": "float32",
        "trust_remote_code": False,
    }
    parquet.write_text(results / "models/tiny/manifest.json", json.dumps(manifest))


def write_plan(results: Path, units: list[str]) -> None:
    plan = results / f"plans/tiny/words/cosine/removed={len(units)}.json"
    parquet.write_text(plan, json.dumps(plan_of(units)))


VARIANT = "tiny/words/cosine/removed=1/none/none"

UNSAVEABLE: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},  # each layer divides by its index
    "jamba": {},  # which layers are attention follows from their index
}


@pytest.mark.parametrize("family", UNSAVEABLE)
def test_a_save_that_would_be_another_model_is_refused_as_its_export_is(
    family: str, results: Path, tmp_path: Path
) -> None:
    """Without layer 2, transformers would load the layers after it with other indices."""
    base = configurations.model(family, **UNSAVEABLE[family])
    folder = base_folder(tmp_path / family)
    base.save_pretrained(folder)
    write_manifest(results, folder)
    variant, _ = lamina.load(VARIANT, results, device="cpu")
    target = tmp_path / "saved"
    target.mkdir()
    (target / "notes.txt").write_text("mine\n")

    refusal = "does not load back as the same model"
    with pytest.raises(LaminaError, match=refusal):
        export(base, ["2"], tmp_path)
    with pytest.raises(LaminaError, match=refusal):
        variant.save_pretrained(target)

    assert [file.name for file in target.iterdir()] == ["notes.txt"]


def test_a_saved_variant_replaces_earlier_weights(results: Path, tmp_path: Path) -> None:
    """Shards of an earlier model would be read in place of the new weights."""
    target = tmp_path / "saved"
    tiny.model().save_pretrained(target, max_shard_size="20KB")
    assert len(list(target.glob("*.safetensors"))) > 1

    variant, tokenizer = lamina.load(VARIANT, results, device="cpu")
    variant.save_pretrained(target)
    tokenizer.save_pretrained(target)

    reloaded = AutoModelForCausalLM.from_pretrained(target)
    token_ids = tiny.tokens()
    torch.testing.assert_close(
        compute_logits(reloaded, token_ids), compute_logits(variant, token_ids)
    )


def test_a_saved_tokenizer_encodes_as_before_whatever_its_class_is_called(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "model")
    tiny.model().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "GPT2Tokenizer"  # would build another one from the vocabulary
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    _, tokenizer = lamina.load(folder, device="cpu")
    tokenizer.save_pretrained(tmp_path / "saved")

    reloaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    stated = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert reloaded("w1 w2 w3")["input_ids"] == stated.encode("w1 w2 w3").ids


@pytest.mark.parametrize(
    ("units", "patches"), [(["1"], random_operators((1, 2))), (["1.mlp"], None)]
)
def test_a_materialised_variant_refuses_a_save_that_would_lose_its_patch(
    units: list[str], patches: Patches | None, tmp_path: Path
) -> None:
    variant = materialise(tiny.model(), plan_of(units), patches)
    with pytest.raises(LaminaError, match="lamina.models.export.save.save_variant"):
        variant.save_pretrained(tmp_path / "lost")


def test_a_materialised_variant_of_whole_layers_is_saved_plainly(tmp_path: Path) -> None:
    variant = materialise(tiny.model(), plan_of(["1"]))
    variant.save_pretrained(tmp_path)

    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    token_ids = tiny.tokens()
    assert torch.equal(compute_logits(reloaded, token_ids), compute_logits(variant, token_ids))


def test_only_the_code_that_lamina_writes_is_trusted(tmp_path: Path) -> None:
    base = tiny.model("gpt2")
    token_ids = tiny.tokens()
    patches = random_operators((1, 2))
    folder = export(base, ["1"], tmp_path, patches)
    variant = materialise(base, plan_of(["1"]), patches)
    torch.testing.assert_close(
        compute_logits(load_on_cpu(folder), token_ids), compute_logits(variant, token_ids)
    )

    code = folder / own_code.CODE
    code.write_text(code.read_text() + "print('anything')\n")
    with pytest.raises(LaminaError, match="trust_remote_code=True"):
        lamina.load(folder, device="cpu")
    lamina.load(folder, device="cpu", trust_remote_code=True)


PLANTED_FILES = (
    "custom_generate/generate.py",
    "generate.py",
    "tokenization_mine.py",
    "modeling_other.py",
    "lamina/__init__.py",
)


def test_no_other_code_in_the_folder_of_an_export_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export(tiny.model(), ["1"], tmp_path, random_operators((1, 2)))
    for name in PLANTED_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"print('{name} ran')\n")

    model = load_on_cpu(folder)
    model.generate(tiny.tokens()[:1], max_new_tokens=2, do_sample=False, pad_token_id=3)

    assert "ran" not in capsys.readouterr().out


def test_a_loaded_export_is_saved_with_its_patches(tmp_path: Path) -> None:
    token_ids = tiny.tokens()
    model = load_on_cpu(export(tiny.model(), ["1"], tmp_path, random_operators((1, 2))))
    resaved = base_folder(tmp_path / "resaved")
    model.save_pretrained(resaved)

    torch.testing.assert_close(
        compute_logits(load_on_cpu(resaved), token_ids), compute_logits(model, token_ids)
    )


@pytest.mark.parametrize(
    "class_names",
    [
        ("pipeline", "LlamaForCausalLM", "x"),
        ("LlamaConfig", "Trainer", "x"),
        ("no", "no", "x"),
    ],
)
def test_a_modeling_file_that_names_other_classes_is_refused(
    class_names: tuple[str, str, str], tmp_path: Path
) -> None:
    folder = export(tiny.model(), ["1"], tmp_path, random_operators((1, 2)))
    (folder / own_code.CODE).write_text(own_code.render_code(*class_names))
    with pytest.raises(LaminaError, match="not what this version of lamina"):
        lamina.load(folder, device="cpu")


def test_an_adapter_in_a_models_folder_is_refused(tmp_path: Path) -> None:
    """transformers would load the weights of the model that the adapter names."""
    tiny.model().save_pretrained(base_folder(tmp_path / "other"))
    tiny.model().save_pretrained(base_folder(tmp_path / "mine"))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "other"), "r": 1}
    (tmp_path / "mine/adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(LaminaError, match="mine holds an adapter .*merge_and_unload"):
        lamina.load(tmp_path / "mine", device="cpu")


def test_an_export_is_not_pruned_again_where_that_would_shift_its_patches(tmp_path: Path) -> None:
    model = load_on_cpu(export(tiny.model(), ["1"], tmp_path, random_operators((1, 2))))
    with pytest.raises(LaminaError, match="itself an export"):
        apply_edits(model, ["0"])


@pytest.mark.parametrize(
    ("units", "healing", "n_predicting_layers", "quantise_command"),
    [
        (["10", "3"], "none", 0, "llama-quantize --prune-layers 3,10 base-f16.gguf"),
        (["3"], "lora", 0, None),  # the base's own weights are not the export's
        (["3.mlp"], "none", 0, None),
        (["3"], "none", 1, None),
    ],
)
def test_the_card_prunes_a_gguf_where_removed_layers_are_the_whole_change(
    units: list[str],
    healing: str,
    n_predicting_layers: int,
    quantise_command: str | None,
    tmp_path: Path,
) -> None:
    base = tiny.model(depth=12, num_nextn_predict_layers=n_predicting_layers)
    card = (export(base, units, tmp_path, healing=healing) / "README.md").read_text()
    assert "convert_hf_to_gguf.py FOLDER" in card
    assert "vllm serve FOLDER" in card
    if quantise_command is None:
        assert "prune-layers" not in card
    else:
        assert quantise_command in card


ALTERNATING = ["sliding_attention", "full_attention"] * 6


def model_with_windows(family: str) -> PreTrainedModel:
    """Twelve layers, of which every other one has a sliding window; in Mistral all have one."""
    if family == "mistral":
        return tiny.model(family, depth=12)
    if family == "gpt_oss":
        return configurations.model(family, num_hidden_layers=12, layer_types=ALTERNATING)
    return tiny.model(family, depth=12, layer_types=ALTERNATING)


@pytest.mark.parametrize(
    ("family", "units"),
    [
        ("gemma3_text", ["1", "2"]),  # one whole period
        ("gemma3_text", ["1", "2", "5", "6"]),  # two periods
        ("gemma3_text", ["10", "11"]),  # the last layers
        ("mistral", ["3"]),  # a window in all layers
    ],
)
def test_the_card_names_other_programs_where_layers_keep_their_kinds(
    family: str, units: list[str], tmp_path: Path
) -> None:
    folder = export(model_with_windows(family), units, tmp_path)
    layer_types = json.loads((folder / "config.json").read_text()).get("layer_types", [])
    assert layer_types == ALTERNATING[: len(layer_types)]
    card = (folder / "README.md").read_text()
    assert "convert_hf" in card
    assert "vllm serve" in card
    assert "this cut shifts them" not in card
    assert ("prune-layers" in card) == (family == "mistral")


@pytest.mark.parametrize(("family", "vllm_follows"), [("gemma3_text", True), ("gpt_oss", False)])
def test_the_card_warns_where_layers_change_their_kinds(
    family: str, vllm_follows: bool, tmp_path: Path
) -> None:
    folder = export(model_with_windows(family), ["3"], tmp_path)
    layer_types = json.loads((folder / "config.json").read_text())["layer_types"]
    assert layer_types != ALTERNATING[: len(layer_types)]
    card = (folder / "README.md").read_text()
    assert "this cut shifts them. Layer 3 differs in kind from layer 3 of" in card
    assert "convert_hf" not in card
    assert "prune-layers" not in card
    assert ("vllm serve" in card) == vllm_follows
    assert ("Not with llama.cpp or vLLM" in card) == (not vllm_follows)


def attend_like_vllm(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **arguments: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention where vLLM puts its own; records `attn_metadata`, an argument of vLLM's."""
    module.config.recorded[module.layer_idx] = arguments["attn_metadata"]
    heads_per_key = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(heads_per_key, 1)
    values = value.repeat_interleave(heads_per_key, 1)
    scores = query @ keys.mT * arguments["scaling"]
    is_later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    return (weights @ values).transpose(1, 2), None


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2"])
def test_the_code_of_an_export_has_what_the_transformers_backend_of_vllm_builds_on(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM asks AutoModel for the classes, sets the attention and loads weights by their names.

    Its base class in 0.33.0: vllm/model_executor/models/transformers/base.py, chosen by
    models/registry.py.
    """
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "vllm", attend_like_vllm)
    base = tiny.model(family)
    token_ids = tiny.tokens()[:, :8]
    patches = random_operators((1, 2), (4, 5))
    folder = export(base, ["1", "4"], tmp_path, patches)
    assert "vllm serve FOLDER --trust-remote-code" in (folder / "README.md").read_text()

    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    auto_classes = [name for name in config.auto_map if name.startswith("AutoModel")]
    assert auto_classes[0] == "AutoModel"
    config._attn_implementation = "vllm"
    model = AutoModel.from_config(config, trust_remote_code=True).eval()
    assert type(model).is_backend_compatible()
    assert model.base_model_prefix == base.base_model_prefix

    prefix = f"{base.base_model_prefix}."
    weights = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name.removeprefix(prefix)] = weight
    mismatch = model.load_state_dict(weights, strict=False)
    assert not mismatch.missing_keys
    assert set(mismatch.unexpected_keys) <= {"lm_head.weight"}

    config.recorded = {}
    arguments = {"position_ids": torch.arange(8)[None], "attn_metadata": "pages"}
    with torch.no_grad():
        outputs = model(token_ids, use_cache=False, return_dict=False, **arguments)
    stream = outputs[0]
    assert config.recorded == {0: "pages", 1: "pages", 2: "pages"}
    variant = materialise(base, plan_of(["1", "4"]), patches)
    expected_logits = compute_logits(variant, token_ids)
    found_logits = base.get_output_embeddings()(stream)
    torch.testing.assert_close(found_logits, expected_logits, atol=1e-5, rtol=1e-5)

    transformers_model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    last_state = transformers_model(token_ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(last_state, stream, atol=1e-5, rtol=1e-5)


def test_the_card_of_an_export_with_code_says_that_vllm_runs_it(tmp_path: Path) -> None:
    folder = export(tiny.model(), ["1.mlp"], tmp_path, form="code")
    assert "vllm serve FOLDER --trust-remote-code" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("family", "units", "reason"),
    [
        ("llama", ["1.attention"], "wants attention in every layer, and layer 1 has none"),
        ("bloom", ["1.mlp"], "not called in the way that vLLM's Transformers backend replaces"),
        ("gpt2", ["1.mlp"], "not called in the way that vLLM's Transformers backend replaces"),
    ],
)
def test_the_card_of_an_export_with_code_says_why_vllm_does_not_run_it(
    family: str, units: list[str], reason: str, tmp_path: Path
) -> None:
    folder = export(tiny.model(family), units, tmp_path, form="code")
    card = (folder / "README.md").read_text()
    assert reason in card
    assert "vllm serve" not in card


def test_a_patch_stays_in_float32_through_an_export_with_float16_weights(tmp_path: Path) -> None:
    base = tiny.model()
    token_ids = tiny.tokens()
    for parameter in base.parameters():
        parameter.data = parameter.data.half()
    # Entries below float16's smallest number, on channels where the stream is large.
    operator = torch.full((32, 32), 1e-9)
    patches = {(1, 2): Patch(operator, torch.full((32,), 1e-9))}
    variant = materialise(base, plan_of(["1"]), patches)

    folder = export(base, ["1"], tmp_path, patches)
    reloaded = load_on_cpu(folder)

    stored = load_file(folder / "model.safetensors")["model.layers.1.patch_operator"]
    for tensor in (stored, layers_of(variant)[1].patch_operator):
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, operator)
    assert torch.equal(layers_of(reloaded)[1].patch_operator, operator)
    assert reloaded.dtype == torch.float16
    torch.testing.assert_close(
        compute_logits(reloaded, token_ids), compute_logits(variant, token_ids)
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_an_export_holds_patch_and_adapter_together(family: str, tmp_path: Path) -> None:
    base = tiny.model(family)
    token_ids = tiny.tokens()
    patches = random_operators((1, 3))
    adapter = tmp_path / "adapter"
    random_adapter(base, ["1", "2"], adapter)

    folder = export(base, ["1", "2"], tmp_path, patches, adapter)

    variant = materialise(base, plan_of(["1", "2"]), patches, adapter)
    torch.testing.assert_close(
        compute_logits(load_on_cpu(folder), token_ids), compute_logits(variant, token_ids)
    )


@pytest.mark.parametrize("units", [["1.attention", "3.attention"], ["1.mlp", "2.mlp"]])
@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_removed_sublayers_and_an_adapter_make_a_stock_checkpoint(
    family: str, units: list[str], tmp_path: Path
) -> None:
    base = tiny.model(family)
    token_ids = tiny.tokens()
    adapter = tmp_path / "adapter"
    random_adapter(base, units, adapter)

    folder = export(base, units, tmp_path, adapter=adapter, healing="lora")

    assert not (folder / own_code.CODE).exists()
    assert "saves neither memory nor time" in (folder / "README.md").read_text()
    variant = materialise(base, plan_of(units), None, adapter)
    torch.testing.assert_close(
        compute_logits(load_on_cpu(folder), token_ids), compute_logits(variant, token_ids)
    )


def test_an_export_has_shards_tokenizer_licence_and_generation_settings(tmp_path: Path) -> None:
    source = source_of(base_folder(tmp_path / "base"), ["1"])
    settings = '{"temperature": 0.3, "do_sample": false}'
    (tmp_path / "base/generation_config.json").write_text(settings)
    folder = tmp_path / "export"

    form = save.export_variant(tiny.model(), source, folder, max_shard_size="30KB")

    assert form == "stock"
    file_names = {file.name for file in folder.iterdir()}
    assert file_names > {
        "model.safetensors.index.json",
        "tokenizer.json",
        "LICENSE",
        "README.md",
    }
    shard_bytes = [file.stat().st_size for file in folder.glob("model-*-of-*.safetensors")]
    assert len(shard_bytes) > 2
    assert max(shard_bytes) < 40_000
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.3
    assert not list(tmp_path.glob(".*"))


def test_an_export_has_every_file_that_prepares_texts_and_images(tmp_path: Path) -> None:
    names = {
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "spiece.model",
        "tekken.json",
        "qwen.tiktoken",
        "dict.txt",
    }
    folder = base_folder(tmp_path / "base")
    for name in names:
        (folder / name).write_text(name)

    save.export_variant(tiny.model(), source_of(folder, ["1"]), tmp_path / "export")

    for name in names:
        assert (tmp_path / "export" / name).read_text() == name


def test_an_earlier_export_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    export(tiny.model(), ["1"], tmp_path)
    (tmp_path / "export/notes.txt").write_text("of the earlier export")
    folder = export(tiny.model(), ["1"], tmp_path)
    assert not (folder / "notes.txt").exists()

    source = source_of(tmp_path / "base", ["1"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(LaminaError, match="not empty and is not an export"):
        save.export_variant(tiny.model(), source, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_a_patch_is_never_exported_as_a_stock_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(LaminaError, match="cannot hold a patch"):
        export(tiny.model(), ["1"], tmp_path, random_operators((1, 2)), form="stock")
    assert not (tmp_path / "export").exists()


def benchmark_row(n_removed: int, accuracy: float, stderr: float) -> dict[str, Any]:
    return {
        "task": "recall",
        "metric": "acc",
        "n_samples": 400,
        "n_shot": 0,
        "higher_is_better": True,
        "selector": "cosine" if n_removed else "none",
        "removed": n_removed,
        "value": accuracy,
        "stderr": stderr,
    }


def test_the_card_says_what_was_removed_and_why_what_it_scores_and_its_licence(
    tmp_path: Path,
) -> None:
    rows = [benchmark_row(0, 0.9, 0.015), benchmark_row(1, 0.8, 0.02)]
    source = source_of(base_folder(tmp_path / "base"), ["3"], repair="ghost", benchmarks=rows)
    folder = tmp_path / "export"
    save.export_variant(tiny.model(), source, folder, random_operators((3, 4)))

    card = (folder / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["license"] == "apache-2.0"
    assert metadata["base_model"] == "lab/words"
    assert "custom_code" in metadata["tags"]
    assert "revision `main`" in card
    assert "| 1 | `3` | 0.25 |" in card
    assert "strategy `one_shot`" in card
    assert "Patch `ghost`" in card
    assert "4 of its 5 layers" in card
    assert "| recall | acc | higher | 0.9 ± 0.015 | 0.8 ± 0.02 | 400 | 0 |" in card
    assert "trust_remote_code=True" in card
    assert str(tmp_path) not in card


def test_the_hub_reads_the_scores_of_an_export_from_its_card(tmp_path: Path) -> None:
    rows = [benchmark_row(0, 0.9, 0.015), benchmark_row(1, 0.8, 0.02)]
    overflowing = benchmark_row(1, float("inf"), 0.0) | {"metric": "perplexity", "stderr": None}
    part = benchmark_row(1, 0.7, 0.03) | {"task": "recall_easy", "part_of": "recall"}
    source = source_of(base_folder(tmp_path / "base"), ["3"], benchmarks=[*rows, overflowing, part])
    save.export_variant(tiny.model(), source, tmp_path / "export")

    card = ModelCard.load(tmp_path / "export/README.md").data
    assert (card.license, card.language) == ("apache-2.0", ["en"])
    assert (card.base_model, card["base_model_relation"]) == ("lab/words", "finetune")
    assert card.model_name == "tiny/words/cosine/removed=1/none/none"
    scores = {result.metric_type: result.metric_value for result in card.eval_results}
    assert scores == {"acc": 0.8, "acc_stderr": 0.02}
    assert {result.dataset_name for result in card.eval_results} == {"recall"}
    assert card.eval_results[0].dataset_args == {"num_fewshot": 0, "num_samples": 400}


def test_a_card_without_scores_has_no_list_of_them(tmp_path: Path) -> None:
    folder = export(tiny.model(), ["3"], tmp_path)

    assert "model-index" not in ModelCard.load(folder / "README.md").data.to_dict()

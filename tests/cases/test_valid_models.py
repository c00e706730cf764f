"""Model folders that look odd and are right: none is refused, and the numbers are right.

Each function changes a copy of the embedded model, which a person could have found, made or
downloaded like that. Its losses with all layers and without one, and its answers, are compared with
the model that transformers loads from the folder, with nothing of lamina.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data.prepare import prepare_calibration
from lamina.engine.sweep import sweep_units
from lamina.models.load import load_model, load_tokenizer
from lamina.models.manifest import describe_model
from lamina_workflow.checks import load
from tests import ROOT
from tests.cases import plain

TEXTS = [
    "sort 2 3 0 8 8 : 0 2 3 8 8",
    "look : hoe hill snow green lilac harbour ? last tool : hoe",
    "look : noon road fog frost forest white ? first place : road",
]
QUESTIONS: list[plain.Question] = [
    {
        "query": "look : hoe hill snow green lilac harbour ? last tool :",
        "choices": ["lilac", "hoe"],
        "gold": 1,
    },
    {
        "query": "look : noon road fog frost forest white ? first place :",
        "choices": ["road", "fog"],
        "gold": 0,
    },
    {
        "query": "look : field saw comb snow sun orange ? last tool :",
        "choices": ["saw", "comb"],
        "gold": 1,
    },
]
REMOVED_LAYER = 5


def change_json(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; a key whose value is `...` is deleted."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for key, value in values.items():
        if value is ...:
            content.pop(key, None)
        else:
            content[key] = value
    file.write_text(json.dumps(content), encoding="utf-8")


def configured(**values: Any) -> Callable[[Path], None]:
    """A change of config.json."""
    return lambda folder: change_json(folder / "config.json", **values)


def generating(**values: Any) -> Callable[[Path], None]:
    """A change of generation_config.json."""
    return lambda folder: change_json(folder / "generation_config.json", **values)


def tokenizing(**values: Any) -> Callable[[Path], None]:
    """A change of tokenizer_config.json."""
    return lambda folder: change_json(folder / "tokenizer_config.json", **values)


def pad_vocabulary(folder: Path) -> None:
    """Rows for tokens that no text has, up to the next multiple of 64."""
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = tensors[name]
        filler = torch.full((-len(rows) % 64, rows.shape[1]), 0.01)
        tensors[name] = torch.cat([rows, filler])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_json(folder / "config.json", vocab_size=len(tensors["lm_head.weight"]))


def tie_embeddings(folder: Path) -> None:
    """One matrix for input and output, stored once."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_json(folder / "config.json", tie_word_embeddings=True)


def write_index(folder: Path) -> None:
    """One shard, named as one of several."""
    shard = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / shard)
    names = sorted(load_file(folder / shard))
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_index_of_whole(folder: Path) -> None:
    """An index beside a single file, which names that file."""
    names = sorted(load_file(folder / "model.safetensors"))
    weight_map = dict.fromkeys(names, "model.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def add_files(folder: Path) -> None:
    """What a snapshot of the hub holds beside the model."""
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (folder / "README.md").write_text("---\nlicense: [\n---\nnot quite YAML\n")
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(b"\0" * 64)
    (folder / "onnx/config.json").write_text("{")
    (folder / "original").mkdir()
    (folder / "original/consolidated.00.pth").write_bytes(b"\0" * 64)
    (folder / "pytorch_model.bin").write_bytes(b"\0" * 64)
    (folder / "training_args.bin").write_bytes(b"\0" * 64)
    (folder / "optimizer.pt").write_bytes(b"\0" * 64)
    (folder / "trainer_state.json").write_text('{"log_history": [{"loss": NaN}]}')
    (folder / "flax_model.msgpack").write_bytes(b"\0" * 64)
    (folder / "model.Q4_0.gguf").write_bytes(b"GGUF")
    (folder / ".cache/huggingface").mkdir(parents=True)
    (folder / "LICENSE").write_text("as you like\n")


def add_token(folder: Path) -> None:
    """A token after the vocabulary of the tokenizer; the padded embedding has a row for it."""
    pad_vocabulary(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<extra>"], special_tokens=True)
    tokenizer.save_pretrained(folder)


def drop_special_tokens(folder: Path) -> None:
    """A tokenizer that begins and fills with nothing."""
    change_json(
        folder / "tokenizer_config.json", bos_token=..., pad_token=..., eos_token=..., unk_token=...
    )
    change_json(folder / "config.json", bos_token_id=None, pad_token_id=None, eos_token_id=None)
    (folder / "generation_config.json").unlink()


def store_weights(dtype: torch.dtype, **settings: Any) -> Callable[[Path], None]:
    """Weights stored in a dtype, beside settings of config.json."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        change_json(folder / "config.json", **settings)

    return change


def save_without_metadata(folder: Path) -> None:
    """A safetensors file as other programs write it, which does not say `format: pt`."""
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")


def begin_every_text(folder: Path) -> None:
    """A tokenizer that puts its first token before every text."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    first = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    template = tokenizer["post_processor"]
    template["single"].insert(0, first)
    template["special_tokens"] = {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def truncate_in_tokenizer(folder: Path) -> None:
    """Truncation and padding that training has left in tokenizer.json."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    direction = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}
    tokenizer["truncation"] = direction | {"max_length": 4}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


ODD_FOLDERS: dict[str, Callable[[Path], None]] = {
    "settings that nobody knows": configured(
        my_notes={"a": [1, None]}, pretraining_step=5000, _commit_hash="0" * 40
    ),
    "the name of another machine's folder": configured(_name_or_path="/home/somebody/ckpt-100"),
    "torch_dtype and no dtype": configured(dtype=..., torch_dtype="float32"),
    "both dtype and torch_dtype": configured(torch_dtype="bfloat16"),
    "no dtype": configured(dtype=...),
    "bfloat16 weights that are read in float32": store_weights(torch.bfloat16),
    "tied embeddings without a word of it": configured(tie_word_embeddings=...),
    "tied embeddings stored once": tie_embeddings,
    "a padded vocabulary": pad_vocabulary,
    "quantization_config: null": configured(quantization_config=None),
    "rope_scaling: null": configured(rope_scaling=None, rope_parameters=..., rope_theta=100.0),
    "rope_theta as transformers 4 writes it": configured(rope_parameters=..., rope_theta=100.0),
    "return_dict: false": configured(return_dict=False),
    "outputs of all layers": configured(output_hidden_states=True, output_attentions=True),
    "no cache": configured(use_cache=False),
    "eager attention": configured(_attn_implementation="eager"),
    "fields of old versions": configured(
        torchscript=False, use_bfloat16=False, pruned_heads={}, tie_encoder_decoder=False,
        id2label={"0": "LABEL_0"}, transformers_version="4.6.0.dev0", top_k=50, do_sample=False,
    ),
    "no architectures": configured(architectures=...),
    "architectures: null": configured(architectures=None),
    "pad_token_id: -1": configured(pad_token_id=-1),
    "no special tokens": drop_special_tokens,
    "several tokens that end a text": configured(eos_token_id=[2, 3]),
    "heads without a dim": configured(head_dim=...),
    "sampling by default": generating(
        do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.5
    ),
    "sampling values without sampling": generating(do_sample=False, temperature=0.6, top_p=0.9),
    "no generation_config.json": lambda folder: (folder / "generation_config.json").unlink(),
    "an index of one shard": write_index,
    "an index beside the one file": write_index_of_whole,
    "a file that does not say its format": save_without_metadata,
    "files of other programs": add_files,
    "an added token": add_token,
    "a first token before every text": begin_every_text,
    "no pad token": tokenizing(pad_token=...),
    "a limit of no use": tokenizing(model_max_length=1000000000000000019884624838656),
    "truncation in tokenizer.json": truncate_in_tokenizer,
    "padding from the left": tokenizing(padding_side="left", truncation_side="left"),
    "a class of transformers 4": tokenizing(tokenizer_class="PreTrainedTokenizerFast"),
    "no tokenizer_config.json": lambda folder: (folder / "tokenizer_config.json").unlink(),
}  # fmt: skip


def expected_numbers(folder: Path) -> dict[str, Any]:
    """Losses of plain transformers with all layers and without one, and its right answers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, return_dict=True)
    # Keys of config.json that change only what a call returns are reset.
    model.config.output_hidden_states = False
    model.config.output_attentions = False
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text_numbers = plain.count_texts(model, tokenizer, TEXTS, None)
    question_numbers = plain.count_questions(model, tokenizer, QUESTIONS)

    del model.model.layers[REMOVED_LAYER]
    model.config.use_cache = False
    cut_numbers = plain.count_texts(model, tokenizer, TEXTS, None)
    return {
        "loss": text_numbers["loss"],
        "n_tokens": text_numbers["n_tokens"],
        "loss without a layer": cut_numbers["loss"],
        "accuracy": question_numbers["accuracy"],
    }


def write_jsonl(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured_numbers(source: str, root: Path) -> dict[str, Any]:
    """The same of lamina, from a configuration as a user writes it."""
    write_jsonl(root / "texts.jsonl", [{"text": text} for text in TEXTS])
    write_jsonl(root / "questions.jsonl", QUESTIONS)
    study = {"models": ["odd"], "calibrations": ["texts", "questions"], "metrics": ["cosine"]}
    raw_config = {
        "models": {"odd": {"source": source, "dtype": "float32"}},
        "calibrations": {
            "texts": {"text": "texts.jsonl", "documents": None, "length": 64},
            "questions": {"choices": "questions.jsonl"},
        },
        "studies": {"maps": study},
    }
    config = load.load_configuration(raw_config, root)
    entry = config.models["odd"]
    manifest = describe_model("odd", entry, root / entry.source)
    load_tokenizer(manifest)
    model = load_model(manifest)
    calibrations = {
        name: prepare_calibration(name, config.calibrations[name], manifest, root, {})
        for name in ("texts", "questions")
    }

    removed_unit = str(REMOVED_LAYER)
    text_scores = sweep_units(model, calibrations["texts"].samples, [removed_unit])
    question_scores = sweep_units(model, calibrations["questions"].samples, [])
    is_correct = [row["correct"] for row in question_scores.rows(["none"])]
    return {
        "loss": sum(row["nll"] for row in text_scores.rows(["none"])),
        "n_tokens": calibrations["texts"].facts["n_tokens"],
        "loss without a layer": sum(row["nll"] for row in text_scores.rows([removed_unit])),
        "accuracy": sum(is_correct) / len(is_correct),
    }


@pytest.mark.parametrize("name", ODD_FOLDERS)
def test_an_odd_folder_has_the_numbers_of_plain_transformers(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(
        ROOT / "resources/reference", folder, ignore=shutil.ignore_patterns("data", "README.md")
    )
    ODD_FOLDERS[name](folder)
    measured = measured_numbers(str(folder), tmp_path)
    assert measured == pytest.approx(expected_numbers(folder), rel=1e-4)


def link_files(folder: Path) -> Path:
    """A snapshot of the hub's cache: every file is a link to one that is named by its hash."""
    blobs = folder.with_name("blobs")
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        if file.is_file():
            file.rename(blobs / f"{number:064x}")
            file.symlink_to(Path("../blobs") / f"{number:064x}")
    return folder


def link_folder(folder: Path) -> Path:
    """A link to the folder."""
    link = folder.with_name("linked")
    link.symlink_to(folder, target_is_directory=True)
    return link


def rename_with_blanks(folder: Path) -> Path:
    """A folder whose name has blanks and other letters."""
    return folder.rename(folder.with_name("Mein Modell (été) [v1.5]"))


WRITTEN_PATHS: dict[str, Callable[[Path], str]] = {
    "a snapshot of links": lambda folder: str(link_files(folder)),
    "a link to a folder": lambda folder: str(link_folder(folder)),
    "blanks and other letters": lambda folder: str(rename_with_blanks(folder)),
    "from home": lambda folder: f"~/{folder.name}",
    "a slash at the end": lambda folder: f"{folder}/",
    "relative, through the parent": lambda folder: f"./../{folder.parent.name}/{folder.name}",
}


@pytest.mark.parametrize("name", WRITTEN_PATHS)
def test_a_folder_is_found_however_its_path_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "resources/reference", folder, ignore=shutil.ignore_patterns("data"))
    source = WRITTEN_PATHS[name](folder)
    expected = expected_numbers(Path(source).expanduser())
    assert measured_numbers(source, tmp_path) == pytest.approx(expected, rel=1e-4)

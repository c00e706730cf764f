"""What `make plan RATE=400` says of config/models, without the models: their shapes, and questions of usual lengths.

`PYTHONPATH=src:. python reports/scripts/plans.py` prints the table of reports/plans.md.
"""

import tempfile
from collections.abc import Mapping
from contextlib import chdir
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from lamina.checks.load import load
from lamina.config.configuration import Configuration
from lamina.cost.estimate import estimate
from lamina.cost.forecast import Stage, duration, size
from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.models.manifest import layer_parameters
from lamina.store import parquet as store
from tests import ROOT

RATE = 400e12
_VOCABULARY = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# As their config.json have them.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": dict(
        model_type="qwen3", num_hidden_layers=36, hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
    ),
    "llama-3.1-8b": dict(
        model_type="llama", num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
    ),
    "olmo-3-7b": dict(
        model_type="olmo3", num_hidden_layers=32, hidden_size=4096, intermediate_size=11008, num_attention_heads=32,
        num_key_value_heads=32, vocab_size=100278, max_position_embeddings=65536,
    ),
    "gemma-3-4b": dict(
        model_type="gemma3_text", num_hidden_layers=34, hidden_size=2560, intermediate_size=10240,
        num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262208, sliding_window=1024,
        tie_word_embeddings=True, max_position_embeddings=131072,
    ),
    "gpt-oss-20b": dict(
        model_type="gpt_oss", num_hidden_layers=24, hidden_size=2880, intermediate_size=2880, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64, num_local_experts=32, num_experts_per_tok=4, vocab_size=201088,
        max_position_embeddings=131072,
    ),
}  # fmt: skip
# Tokens of the question, those of each answer, answers, and test documents; of a text its tokens.
LENGTHS = {"arc_easy": (32, 6, 4, 2376), "piqa": (20, 24, 2, 1838)}
TEXT = 2048


def configuration(name: str, root: Path) -> Configuration:
    """The file of a model, in a project that has its folder if it is none of the hub."""
    folder = root / "models" / name
    AutoConfig.for_model(**SHAPES[name], **_VOCABULARY).save_pretrained(folder)
    store.write_tensors(folder / "model.safetensors", {}, {})
    (folder / "tokenizer.json").write_text("{}")
    raw = yaml.safe_load((ROOT / f"config/models/{name}.yaml").read_text(encoding="utf-8"))
    return load(raw, root)


def manifest(name: str, folder: Path) -> dict[str, Any]:
    """What the estimate reads of a manifest."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    told = dict(n_layers=config.num_hidden_layers, hidden_size=config.hidden_size, dtype="bfloat16")
    counts = dict(
        parameters=model.num_parameters(),
        layer_parameters=layer_parameters(model) // told["n_layers"],
    )
    return told | counts | dict(path=str(folder), trust_remote_code=False)


def samples(config: Configuration, calibration: str) -> list[Sample]:
    """As many documents as a calibration asks for, all of the usual length."""
    entry: Any = config.calibrations[calibration]
    if calibration not in LENGTHS:
        first, _, last = entry.documents.partition(":")
        ids = tuple(range(TEXT))
        return [
            Sample(n, "text", 0, (Row(ids[:1], ids[1:], 1),), str(n))
            for n in range(int(first), int(last))
        ]
    question, answer, answers, _ = LENGTHS[calibration]
    context = tuple(range(question))
    rows = [
        Row(context, tuple(range(1000 * n, 1000 * n + answer)), 1) for n in range(1, answers + 1)
    ]
    return [Sample(n, "choices", 0, tuple(rows), str(n)) for n in range(entry.limit)]


def costs(name: str, root: Path) -> Mapping[str, Any]:
    """What results/cost.json would say."""
    config, folder = configuration(name, root), root / "models" / name
    store.write_json(root / f"{name}/manifest.json", manifest(name, folder))
    drawn = [root / f"{name}/{calibration}.parquet" for calibration in config.calibrations]
    for file in drawn:
        calibrations.write(
            file, calibrations.build(samples(config, file.stem), SHAPES[name]["vocab_size"])
        )
    tested = [root / f"{task}.parquet" for task in config.benchmarks.tasks]
    for file in tested:
        store.write(file, pa.table({"document": [""] * LENGTHS[file.stem][3]}))
    return estimate(
        config, [str(root / f"{name}/manifest.json")], list(map(str, drawn)), list(map(str, tested))
    )


def row(name: str, root: Path) -> str:
    stages = {stage: Stage(**entry) for stage, entry in costs(name, root)["stages"].items()}
    total = reduce(Stage.plus, stages.values())
    weights = 2 * manifest(name, root / "models" / name)["parameters"]
    times = [duration(each.flops / RATE) for each in (*stages.values(), total) if each.jobs]
    cells = [
        *times,
        duration(total.naive_flops / RATE),
        size(weights),
        size(total.memory),
        size(total.disk),
    ]
    return f"| {name} | {total.jobs:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name in SHAPES:
            print(row(name, Path(folder)), flush=True)

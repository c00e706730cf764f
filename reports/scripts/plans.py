"""What `make plan RATE=400` says of config/models, without the models: their shapes, and questions of usual lengths.

`PYTHONPATH=src:. python reports/scripts/plans.py` prints the first table of reports/plans.md, and with `search` the
table of the memory of the recommended search.
"""

import sys
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

from lamina.data import calibrations
from lamina.data.calibrations import Row, Sample
from lamina.engine import footprint
from lamina.engine.batches import TOKENS
from lamina.engine.footprint import Shape
from lamina.models.manifest import count_layer_parameters
from lamina.store import parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.estimate import Works, count_tokens, estimate_cost, most_runs
from lamina_workflow.cost.forecast import Stage, format_bytes, format_duration
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.prune import SearchPlans
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
# Other shapes of the recommended search, which have no file in config/models.
SEARCHED: dict[str, dict[str, Any]] = {
    "gemma-3-270m": dict(
        model_type="gemma3_text", num_hidden_layers=18, hidden_size=640, intermediate_size=2048, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, vocab_size=262144, sliding_window=512, tie_word_embeddings=True,
        max_position_embeddings=32768,
    ),
    "qwen2.5-1.5b": dict(
        model_type="qwen2", num_hidden_layers=28, hidden_size=1536, intermediate_size=8960, num_attention_heads=12,
        num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "llama-3.1-8b": SHAPES["llama-3.1-8b"],
    "qwen3-8b": SHAPES["qwen3-8b"],
    "llama-3.1-70b": dict(
        model_type="llama", num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
    ),
}  # fmt: skip
# Tokens of the question, those of each answer, answers, and test documents; of a text its tokens.
LENGTHS = {"arc_easy": (32, 6, 4, 2376), "piqa": (20, 24, 2, 1838)}
TEXT = 2048


def configuration(name: str, root: Path) -> Configuration:
    """The file of a model, in a project that has its folder if it is none of the hub."""
    folder = root / "models" / name
    AutoConfig.for_model(**SHAPES[name], **_VOCABULARY).save_pretrained(folder)
    parquet.write_tensors(folder / "model.safetensors", {}, {})
    (folder / "tokenizer.json").write_text("{}")
    raw = yaml.safe_load((ROOT / f"config/models/{name}.yaml").read_text(encoding="utf-8"))
    return load_configuration(raw, root)


def manifest(name: str, folder: Path) -> dict[str, Any]:
    """What the estimate reads of a manifest."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    told = dict(n_layers=config.num_hidden_layers, hidden_size=config.hidden_size, dtype="bfloat16")
    counts = dict(
        parameters=model.num_parameters(),
        layer_parameters=count_layer_parameters(model) // told["n_layers"],
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
    parquet.write_json(root / f"{name}/manifest.json", manifest(name, folder))
    drawn = [root / f"{name}/{calibration}.parquet" for calibration in config.calibrations]
    for file in drawn:
        calibrations.write_calibration(
            file,
            calibrations.build_calibration(samples(config, file.stem), SHAPES[name]["vocab_size"]),
        )
    tested = [root / f"{task}.parquet" for task in config.benchmarks.tasks]
    for file in tested:
        parquet.write_table(file, pa.table({"document": [""] * LENGTHS[file.stem][3]}))
    return estimate_cost(
        config, [str(root / f"{name}/manifest.json")], list(map(str, drawn)), list(map(str, tested))
    )


def row(name: str, root: Path) -> str:
    stages = {stage: Stage(**entry) for stage, entry in costs(name, root)["stages"].items()}
    total = reduce(Stage.plus, stages.values())
    weights = 2 * manifest(name, root / "models" / name)["parameters"]
    times = [format_duration(each.flops / RATE) for each in (*stages.values(), total) if each.jobs]
    cells = [
        *times,
        format_duration(total.naive_flops / RATE),
        format_bytes(weights),
        format_bytes(total.memory),
        format_bytes(total.disk),
    ]
    return f"| {name} | {total.jobs:,} | {' | '.join(cells)} |"


def search_row(name: str, root: Path) -> str:
    """The memory of a search for three sizes, with one repair and text among the judges, from its counts."""
    settings = AutoConfig.for_model(**SEARCHED[name], **_VOCABULARY)
    settings.save_pretrained(root / "models" / name)
    facts = manifest(name, root / "models" / name)
    raw = yaml.safe_load((ROOT / "config/models/qwen3-8b.yaml").read_text(encoding="utf-8"))
    layers = facts["n_layers"]
    raw["models"] = {
        name: {"source": "some/model", "revision": "main", "layers": layers, "dtype": "bfloat16"}
    }
    raw["selectors"]["portfolio"]["repairs"] = ["ghost"]
    raw["studies"].pop("maps")
    sizes = [round(share * layers) for share in (0.125, 0.2, 0.25)]
    raw["studies"]["prune"] |= {"models": [name], "removed": sizes}
    config = load_configuration(raw, root)
    tokens = {(name, drawn): count_tokens(samples(config, drawn)) for drawn in raw["calibrations"]}
    shape = Shape.of(settings, 2)
    works = Works(config, {name: facts}, {name: shape}, tokens, {})
    total = works.search_memory(name, "arc_easy", "portfolio", sizes)
    runs = most_runs(config.selectors["portfolio"], layers, sizes)
    text = tokens[name, "c4"]
    fit = footprint.fit_peak_bytes(shape, TOKENS, text.longest, text.samples, runs)
    patches, waiting = (
        runs * shape.channels**2 * footprint.FLOAT,
        footprint.waiting_patch_bytes(shape, runs),
    )
    weights = 2 * facts["parameters"]
    place = Wildcards(model=name, calibration="arc_easy", selector="portfolio")
    mem_mb = SearchPlans.of(config, place).memory(facts | {"weights_bytes": weights}, 1)
    counts = (weights, total, fit, waiting, patches - waiting, 1e6 * mem_mb)
    return f"| {name} | {' | '.join(format_bytes(count) or '0' for count in counts)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        of_search = sys.argv[1:] == ["search"]
        for name in SEARCHED if of_search else SHAPES:
            made = search_row if of_search else row
            print(made(name, Path(folder)), flush=True)

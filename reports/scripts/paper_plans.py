"""What `lamina plan --rate 100` says of each study of config/papers, without the models and their data.

The models are their shapes, as their config.json have them; questions and documents have usual lengths, which stand below.
`PYTHONPATH=src:. python reports/scripts/paper_plans.py` prints the tables of docs/papers.md.
"""

from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lamina.engine.footprint import Shape
from lamina.models.sizes import count_sizes
from lamina.options.entry import document_range
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.estimate import Works, sum_by_stage
from lamina_workflow.cost.forecast import Stage, format_bytes, format_duration
from lamina_workflow.cost.work import Tokens
from lamina_workflow.papers.data import Raw
from lamina_workflow.papers.study import PAPERS, read_paper
from tests import ROOT

RATE = 100e12
_VOCABULARY = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_LLAMA_3 = dict(
    model_type="llama", num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128256,
)  # fmt: skip
_LLAMA_2 = dict(
    model_type="llama", num_hidden_layers=32, hidden_size=4096, intermediate_size=11008, num_attention_heads=32,
    num_key_value_heads=32, vocab_size=32000,
)  # fmt: skip
# By the names of the configurations; a checkpoint of a series has the shape of the series.
SHAPES: dict[str, dict[str, Any]] = {
    "llama3-8b": _LLAMA_3,
    "llama3.1-8b": _LLAMA_3,
    "deepseek-8b": _LLAMA_3,
    "mistral-7b": _LLAMA_3 | dict(vocab_size=32000),
    "llama3-70b": _LLAMA_3 | dict(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64,
    ),
    "llama-2-7b": _LLAMA_2,
    "llama2-7b": _LLAMA_2,
    "llama-2-13b": _LLAMA_2 | dict(
        num_hidden_layers=40, hidden_size=5120, intermediate_size=13824, num_attention_heads=40, num_key_value_heads=40,
    ),
    "llama-2-70b": _LLAMA_2 | dict(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8,
    ),
    "olmo-7b": _LLAMA_2 | dict(model_type="olmo", vocab_size=50304),
    "olmo": _LLAMA_2 | dict(model_type="olmo", vocab_size=50304),
    "olmo2-7b": _LLAMA_2 | dict(model_type="olmo2", vocab_size=100352),
    "pythia": dict(
        model_type="gpt_neox", num_hidden_layers=32, hidden_size=4096, intermediate_size=16384, num_attention_heads=32,
        vocab_size=50432,
    ),
    "phi-2": dict(
        model_type="phi", num_hidden_layers=32, hidden_size=2560, intermediate_size=10240, num_attention_heads=32,
        vocab_size=51200,
    ),
    "qwen3-14b": dict(
        model_type="qwen3", num_hidden_layers=40, hidden_size=5120, intermediate_size=17408, num_attention_heads=40,
        num_key_value_heads=8, head_dim=128, vocab_size=151936,
    ),
}  # fmt: skip


class Lengths(NamedTuple):
    """Usual tokens of a task's question, with its solved examples, and of an answer."""

    question: int
    answer: int
    n_answers: int
    n_test: int


TASKS = {
    "arc_challenge": Lengths(35, 7, 4, 1172),
    "arc_easy": Lengths(32, 6, 4, 2376),
    "boolq": Lengths(135, 1, 2, 3270),
    "copa": Lengths(15, 8, 2, 100),
    "gsm8k": Lengths(850, 120, 1, 1319),
    "hellaswag": Lengths(60, 28, 4, 10042),
    "mmlu": Lengths(600, 1, 4, 14042),
    "mmlu_flan_cot_fewshot": Lengths(900, 100, 1, 14042),
    "openbookqa": Lengths(15, 5, 4, 500),
    "piqa": Lengths(20, 24, 2, 1838),
    "race": Lengths(420, 8, 4, 1045),
    "rte": Lengths(75, 1, 2, 277),
    "winogrande": Lengths(25, 8, 2, 1267),
}
# Usual tokens of a document.
DOCUMENTS = {
    "allenai/c4": 480,
    "GAIR/lima": 600,
    "sahil2801/CodeAlpaca-20k": 110,
    "TIGER-Lab/MathInstruct": 190,
    "Salesforce/wikitext": 80,
    "ptb-text-only/ptb_text_only": 28,
}
N_DOCUMENTS = {"wikitext2": 3600, "ptb": 3370}  # of a whole text


def task_tokens(lengths: Lengths, n_samples: int) -> Tokens:
    """Tokens of so many questions of a task."""
    line = lengths.question + lengths.n_answers * lengths.answer
    row = lengths.question + lengths.answer
    return Tokens(
        samples=n_samples,
        packed=n_samples * line,
        rows=n_samples * row * lengths.n_answers,
        stream=n_samples * row,
        longest=line,
        scored=n_samples * lengths.answer * lengths.n_answers,
        lines=(line,) * n_samples,
    )


def text_tokens(entry: Any, n_documents: int) -> Tokens:
    """Tokens of a text, cut or in windows."""
    length = getattr(entry, "length", None) or entry.window
    document = min(DOCUMENTS[entry.hub], length)
    if getattr(entry, "min_tokens", None):
        document = length
    if entry.joined is not None:
        n_documents, document = max(1, n_documents * document // length), length
    total = n_documents * document
    lines = (document,) * n_documents
    return Tokens(n_documents, total, total, total, document, total, lines)


def calibration_tokens(config: Configuration, name: str) -> Tokens:
    """Tokens of a calibration."""
    entry: Any = config.calibrations[name]
    if hasattr(entry, "mixture"):
        parts = [calibration_tokens(config, part) for part in entry.mixture]
        return reduce(Tokens.plus, parts)
    if hasattr(entry, "tasks"):  # a tenth of the seven training splits: 11,418 questions
        share = 11418 // len(entry.tasks)
        return reduce(Tokens.plus, [task_tokens(TASKS[task], share) for task in entry.tasks])
    if hasattr(entry, "task"):
        return task_tokens(TASKS[entry.task], entry.limit)
    first, end = document_range(entry.documents)
    return text_tokens(entry, (end or 0) - first)


def measured_tokens(config: Configuration, name: str) -> Tokens:
    """Tokens of a benchmark task or of a text."""
    if name in TASKS:
        return task_tokens(TASKS[name], TASKS[name].n_test)
    entry = config.benchmarks.perplexity[name]
    first, end = document_range(entry.documents)
    return text_tokens(entry, (end - first) if end else N_DOCUMENTS[name])


def describe_model(name: str) -> tuple[dict[str, Any], Shape]:
    """What the estimate reads of a manifest, and the shape."""
    shape_name = name if name in SHAPES else name.partition("-")[0]
    settings = AutoConfig.for_model(
        **SHAPES[shape_name], max_position_embeddings=4096, **_VOCABULARY
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings)
    n_layers = settings.num_hidden_layers
    manifest = dict(
        n_layers=n_layers, hidden_size=settings.hidden_size, dtype="bfloat16", path=name, trust_remote_code=False,
        parameters=model.num_parameters(), layer_parameters=count_sizes(model, 2).layer_parameters,
    )  # fmt: skip
    return manifest, Shape.of(settings, 2)


def estimate(raw: Raw, root: Path) -> dict[str, Stage]:
    """The cost of every stage of a configuration."""
    config = load_configuration(raw, root)
    described = {name: describe_model(name) for name in config.models}
    calibrations = {name: calibration_tokens(config, name) for name in config.calibrations}
    tasks = [*config.benchmarks.tasks, *config.benchmarks.perplexity]
    tests = {name: measured_tokens(config, name) for name in tasks}
    works = Works(
        config,
        {name: manifest for name, (manifest, _) in described.items()},
        {name: shape for name, (_, shape) in described.items()},
        {(model, name): tokens for model in described for name, tokens in calibrations.items()},
        {(model, name): tokens for model in described for name, tokens in tests.items()},
    )
    return sum_by_stage(works)


def row(name: str, raw: Raw, root: Path) -> str:
    total = reduce(Stage.plus, estimate(raw, root).values())
    healing = estimate(raw, root)["heal"]
    cells = [
        f"`{name}`",
        f"{total.jobs:,}",
        format_duration(total.flops / RATE),
        format_duration(healing.flops / RATE) if healing.jobs else "–",
        format_bytes(total.memory),
        format_bytes(total.disk),
    ]
    return f"| {' | '.join(cells)} |"


def print_paper(name: str) -> None:
    """A row for each study, and one for all."""
    raw = read_paper(name)
    print(
        f"\n{name}\n\n| study | jobs | all | of it training | memory | disk |\n|---|---|---|---|---|---|"
    )
    for study_name, study in raw["studies"].items():
        models = {model: raw["models"][model] for model in study["models"]}
        alone = raw | {"models": models, "studies": {study_name: study}}
        print(row(study_name, alone, ROOT), flush=True)
    print(row("all", raw, ROOT), flush=True)


if __name__ == "__main__":
    for paper in PAPERS:
        print_paper(paper)

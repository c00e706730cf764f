"""What the jobs share that measure many variants of one model: their arguments, one model load, and two tables."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.evaluation import variants
from lamina.models.load import load_model
from lamina.tables import store
from lamina.variant import Variant

Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str], tuple[Rows, Rows]]
"""Of a model and what messages call it: rows of `benchmarks` and of `benchmark_samples`, without a variant's keys."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every such job."""
    found = argparse.ArgumentParser(description=description, fromfile_prefix_chars="@")
    found.add_argument("--manifest", type=Path, required=True)
    found.add_argument("--variants", type=Variant.parse, nargs="*", default=[], help="variants of one model, as text")
    found.add_argument("--results", type=Path, default=Path("results"), help="where the variants' files are")
    found.add_argument("--task", required=True, help="name of the task or perplexity text in the configuration")
    found.add_argument("--options", type=json.loads, required=True, help="its options, as JSON")
    found.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    found.add_argument("--output", type=Path, required=True)
    found.add_argument("--samples", type=Path, required=True)
    found.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    return found


def run(arguments: argparse.Namespace, prepare: Callable[[dict[str, Any], PreTrainedModel], Score]) -> None:
    """Score every variant by what `prepare` makes of the manifest and the unpruned model, and write both tables."""
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    if arguments.variants:
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
        base = load_model(manifest)
        score = prepare(manifest, base)
        for variant, model in variants.in_turn(base, arguments.variants, arguments.results):
            measured, documents = score(model, variants.title(variant))
            rows += [variant.row() | row for row in measured]
            samples += [variant.row() | row for row in documents]
    store.write(arguments.samples, store.from_rows("benchmark_samples", samples), store.provenance(vars(arguments)))
    store.write(arguments.output, store.from_rows("benchmarks", rows), store.provenance(vars(arguments)))

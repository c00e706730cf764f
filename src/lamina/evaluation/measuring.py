"""What the jobs share that measure many variants of one model: one model load, and two tables."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel

from lamina import seal
from lamina.evaluation import assembly
from lamina.jobs.benchmark_generation import BenchmarkGeneration
from lamina.jobs.benchmark_perplexity import BenchmarkPerplexity
from lamina.jobs.benchmark_task import BenchmarkTask
from lamina.models.load import load_model
from lamina.tables import store
from lamina.variant import Variant

BenchmarkJob = BenchmarkTask | BenchmarkGeneration | BenchmarkPerplexity
Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str], tuple[Rows, Rows]]
"""Of a model and what messages call it: rows of `benchmarks` and of `benchmark_samples`, without a variant's keys."""


def run(job: BenchmarkJob, prepare: Callable[[dict[str, Any], PreTrainedModel], Score]) -> None:
    """Score every variant by what `prepare` makes of the manifest and the unpruned model, and write both tables."""
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    if job.variants:
        manifest = seal.read_json(job.manifest)
        base = load_model(manifest)
        score = prepare(manifest, base)
        for variant, model in assembly.in_turn(base, [Variant.parse(text) for text in job.variants]):
            measured, documents = score(model, assembly.title(variant))
            rows += [variant.row() | row for row in measured]
            samples += [variant.row() | row for row in documents]
    store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
    store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)

"""What the jobs share that measure many variants of one model: one model load, and two tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from lamina import seal
from lamina.evaluation import assembly
from lamina.evaluation.assembly import Parts
from lamina.evaluation.together import Together, candidate
from lamina.jobs.benchmark_generation import BenchmarkGeneration
from lamina.jobs.benchmark_perplexity import BenchmarkPerplexity
from lamina.jobs.benchmark_task import BenchmarkTask
from lamina.models.load import load_model
from lamina.models.materialise import materialise
from lamina.tables import store
from lamina.variant import Variant

BenchmarkJob = BenchmarkTask | BenchmarkGeneration | BenchmarkPerplexity
Rows = Sequence[dict[str, Any]]
Score = Callable[[PreTrainedModel, str, Together], tuple[Rows, Rows]]
"""Of a model, what messages call it, and what can be measured with it in one pass: rows of `benchmarks` and of
`benchmark_samples`, without a variant's keys."""

_PATCHES = 1 << 30  # bytes of patches that are held at a time


def run(job: BenchmarkJob, prepare: Callable[[dict[str, Any], PreTrainedModel], Score]) -> None:
    """Score every variant by what `prepare` makes of the manifest and the unpruned model, and write both tables."""
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    if job.variants:
        manifest = seal.read_json(job.manifest)
        base = load_model(manifest)
        score = prepare(manifest, base)
        for parts in _some(job.variants):
            candidates = {assembly.title(variant): candidate(base, each) for variant, each in parts.items()}
            together = Together(base, {name: found for name, found in candidates.items() if found is not None})
            for variant, each in parts.items():
                model = materialise(base, each.plan, each.patches, each.adapter)
                measured, documents = score(model, assembly.title(variant), together)
                rows += [variant.row() | row for row in measured]
                samples += [variant.row() | row for row in documents]
    store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
    store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)


def _some(variants: Sequence[str]) -> Iterator[Mapping[Variant, Parts]]:
    """The parts of the variants that were not refused, of as many at a time as their patches leave room for."""
    found, held = dict[Variant, Parts](), 0
    for variant in map(Variant.parse, variants):
        if assembly.refused(variant):
            continue
        parts = assembly.read(variant)
        tensors = [tensor for fitted in (parts.patches or {}).values() for tensor in fitted.tensors.values()]
        size = sum(tensor.nbytes for tensor in tensors)
        if found and held + size > _PATCHES:
            yield found
            found, held = {}, 0
        found[variant] = parts
        held += size
    if found:
        yield found

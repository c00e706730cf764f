"""Measure one perplexity on many variants of one model, with one model load."""

from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.data.benchmark_documents import read_texts
from lamina.evaluation.assembly import read_all_parts
from lamina.evaluation.measuring import Unfinished, measure_variants
from lamina.evaluation.perplexity import PerplexityBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum, parquet
from lamina_workflow.stages.benchmark import BenchmarkPerplexity

Rows = list[dict[str, Any]]


def measure_block(job: BenchmarkPerplexity, unfinished: Unfinished) -> tuple[Rows, Rows]:
    """Rows of tables `benchmarks` and `benchmark_samples`."""
    manifest = checksum.read_json(job.manifest)
    base = load_model(manifest, check=job.check)
    documents = read_texts(job.documents)
    benchmark = PerplexityBenchmark(job.name, documents, load_tokenizer(manifest), job.text)
    variants = read_all_parts(job.files_by_variant())
    return measure_variants(base, variants, benchmark.score, unfinished)


if __name__ == "__main__":
    with run_script(snakemake):
        job = BenchmarkPerplexity.read(snakemake)
        unfinished = Unfinished(f"{job.output}.unfinished", job.origin)
        rows: Rows = []
        samples: Rows = []
        if job.variants:
            rows, samples = measure_block(job, unfinished)
        parquet.write_table(
            job.samples, parquet.from_rows("benchmark_samples", samples), job.provenance
        )
        parquet.write_table(job.output, parquet.from_rows("benchmarks", rows), job.provenance)
        unfinished.remove()

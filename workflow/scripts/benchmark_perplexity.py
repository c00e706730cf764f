"""Measure one perplexity on many variants of one model, with one model load."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data.documents import perplexity_texts
from lamina.evaluation import perplexity
from lamina.evaluation.measuring import Unfinished, measure
from lamina.models.load import load_model, load_tokenizer
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkPerplexity
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkPerplexity.read(snakemake)
        unfinished, rows, samples = Unfinished(f"{job.output}.unfinished", job.origin), [], []
        if job.variants:
            manifest = seal.read_json(job.manifest)
            base = load_model(manifest, check=job.check)
            documents = perplexity_texts(job.text, Path.cwd())
            score = perplexity.benchmark(job.name, documents, load_tokenizer(manifest), job.text)
            rows, samples = measure(base, list(map(Variant.parse, job.variants)), score, unfinished)
        store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
        store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)
        unfinished.remove()

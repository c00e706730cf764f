"""Measure the answers that many variants of one model write to one lm-eval task, with one model load."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data.lm_tasks import task_object
from lamina.data.prompts import Style
from lamina.evaluation.generation import GenerationBenchmark
from lamina.evaluation.measuring import Unfinished, measure
from lamina.models.load import load_model, load_tokenizer
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkGeneration
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkGeneration.read(snakemake)
        unfinished, rows, samples = Unfinished(f"{job.output}.unfinished", job.origin), [], []
        if job.variants:
            manifest = seal.read_json(job.manifest)
            base = load_model(manifest, check=job.check)
            options = (job.task.num_fewshot, job.task.choices)
            task = task_object(job.name, Path.cwd(), *options, trust_code=job.task.trust_code)
            settings = (job.generate, job.task.limit, Style.of(manifest))
            score = GenerationBenchmark(task, base, load_tokenizer(manifest), *settings).score
            rows, samples = measure(base, list(map(Variant.parse, job.variants)), score, unfinished)
        store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
        store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)
        unfinished.remove()

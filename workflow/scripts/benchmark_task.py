"""Score one lm-eval task or group of tasks on many variants of one model, with one model load."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data.lm_tasks import load_task
from lamina.data.prompts import Style
from lamina.evaluation.measuring import Unfinished, measure
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkTask
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkTask.read(snakemake)
        unfinished, rows, samples = Unfinished(f"{job.output}.unfinished", job.origin), [], []
        if job.variants:
            manifest = seal.read_json(job.manifest)
            base = load_model(manifest, check=job.check)
            options = (job.task.num_fewshot, job.task.choices)
            task = load_task(job.name, Path.cwd(), *options, trust_code=job.task.trust_code)
            score = TaskBenchmark(
                task, base, load_tokenizer(manifest), job.task.limit, Style.of(manifest)
            ).score
            rows, samples = measure(base, list(map(Variant.parse, job.variants)), score, unfinished)
        store.write(job.samples, store.from_rows("benchmark_samples", samples), job.provenance)
        store.write(job.output, store.from_rows("benchmarks", rows), job.provenance)
        unfinished.remove()

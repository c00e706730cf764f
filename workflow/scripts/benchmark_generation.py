"""Measure the answers that variants of one model write to one lm-eval task, with one model load."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data.lm_tasks import task_object
from lamina.data.prompts import Style
from lamina.evaluation.assembly import read_all_parts
from lamina.evaluation.generation import GenerationBenchmark
from lamina.evaluation.measuring import Unfinished, measure_variants
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum
from lamina_workflow.stages.benchmark import BenchmarkGeneration, Rows


def measure_block(job: BenchmarkGeneration, unfinished: Unfinished) -> tuple[Rows, Rows]:
    """Rows of tables `benchmarks` and `benchmark_samples`."""
    manifest = checksum.read_json(job.manifest)
    base = load_model(manifest, check=job.check)
    task = task_object(job.name, Path.cwd(), **job.task.loading)
    benchmark = GenerationBenchmark(
        task,
        base,
        load_tokenizer(manifest),
        job.generate,
        job.task.limit,
        Style.of(manifest),
    )
    score = benchmark.score
    variants = read_all_parts(job.files_by_variant())
    return measure_variants(base, variants, score, unfinished)


if __name__ == "__main__":
    with run_script(snakemake):
        BenchmarkGeneration.read(snakemake).write(measure_block)

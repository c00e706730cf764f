"""Score one lm-eval task or group of tasks on many variants of one model, with one model load."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data.lm_tasks import load_task
from lamina.data.prompts import Style
from lamina.evaluation.assembly import read_all_parts
from lamina.evaluation.measuring import Unfinished, measure_variants
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum
from lamina_workflow.stages.benchmark import BenchmarkTask, Rows


def measure_block(job: BenchmarkTask, unfinished: Unfinished) -> tuple[Rows, Rows]:
    """Rows of tables `benchmarks` and `benchmark_samples`."""
    manifest = checksum.read_json(job.manifest)
    base = load_model(manifest, check=job.check)
    task = load_task(job.name, Path.cwd(), **job.task.loading)
    tokenizer = load_tokenizer(manifest)
    score = TaskBenchmark(task, base, tokenizer, job.task.limit, Style.of(manifest)).score
    variants = read_all_parts(job.files_by_variant())
    return measure_variants(base, variants, score, unfinished)


if __name__ == "__main__":
    with run_script(snakemake):
        BenchmarkTask.read(snakemake).write(measure_block)

"""Write lm-eval's files of one variant: its scores, and every question with the answers."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data.lm_tasks import load_task
from lamina.data.prompts import Style
from lamina.evaluation import assembly
from lamina.evaluation.lm_eval_files import join_results, write_lm_eval_files
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.models.materialise import materialise
from lamina.store import checksum
from lamina_workflow.stages.export import LogSamples


def log_samples(job: LogSamples) -> None:
    """Measure the variant of a job on each of its tasks, and write lm-eval's files."""
    manifest = checksum.read_json(job.manifest)
    base = load_model(manifest, check=job.check)
    tokenizer = load_tokenizer(manifest)
    style = Style.of(manifest)
    ((variant, files),) = job.files_by_variant().items()
    model = materialise(base, *assembly.read_parts(variant, files))

    results = []
    for name, entry in job.tasks.items():
        task = load_task(name, Path.cwd(), **entry.loading)
        benchmark = TaskBenchmark(task, base, tokenizer, entry.limit, style)
        results.append(benchmark.evaluate(model, assembly.name_variant(variant)))
    template = tokenizer.chat_template if style.chat_template else None
    write_lm_eval_files(join_results(results), Path(job.output), str(variant), style, template)


if __name__ == "__main__":
    with run_script(snakemake):
        log_samples(LogSamples.read(snakemake))

"""Score one lm-eval task or group of tasks on many variants of one model, with one model load."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.data.lm_tasks import load_task
from lamina.evaluation import measuring
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_tokenizer
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkTask

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkTask.read(snakemake)

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            options = (job.task.num_fewshot, job.task.choices)
            task = load_task(job.name, Path.cwd(), *options, trust_code=job.task.trust_code)
            chat = bool(manifest.get("chat_template"))
            return TaskBenchmark(task, base, load_tokenizer(manifest), job.task.limit, chat).score

        measuring.run(job, prepare)

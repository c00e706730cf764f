"""Measure the answers that many variants of one model write to one lm-eval task, with one model load."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.data.lm_tasks import task_object
from lamina.evaluation import measuring
from lamina.evaluation.generation import GenerationBenchmark
from lamina.models.load import load_tokenizer
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkGeneration

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkGeneration.read(snakemake)

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            options = (job.task.num_fewshot, job.task.choices)
            task = task_object(job.name, Path.cwd(), *options, trust_code=job.task.trust_code)
            chat = bool(manifest.get("chat_template"))
            return GenerationBenchmark(task, base, load_tokenizer(manifest), job.generate, job.task.limit, chat).score

        measuring.run(job, prepare)

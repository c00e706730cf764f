"""Write the hashes of the documents that a benchmark scores, and of their runs of words.

Calibrations are checked against these hashes.
"""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

import pyarrow as pa

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data import documents, lm_tasks
from lamina.data.overlap import document_hash, hash_word_runs
from lamina.store import parquet
from lamina_workflow.stages.prepare import PrepareTask


def read_test_documents(job: PrepareTask) -> list[tuple[str, list[str]]]:
    """Question and choices of the documents that the benchmark scores; texts have no choices."""
    if job.text:
        location = f"benchmarks.perplexity.{job.name}"
        texts = documents.perplexity_texts(job.text, Path.cwd(), location)
        return [(text, []) for text in texts if text.strip()]
    task = lm_tasks.load_task(
        job.name, Path.cwd(), None, job.task.choices, trust_code=job.task.trust_code
    )
    is_own = job.task.choices is not None or lm_tasks.is_own(job.name, Path.cwd())
    return lm_tasks.test_documents(task, job.task.limit, is_own)


if __name__ == "__main__":
    with run_script(snakemake):
        job = PrepareTask.read(snakemake)
        tested = read_test_documents(job)
        hashes = [document_hash(*document) for document in tested]
        runs_of_words = [hash_word_runs(*document) for document in tested]
        columns = {
            "document": pa.array(hashes, pa.string()),
            "runs": pa.array(runs_of_words, pa.list_(pa.uint64())),
        }
        parquet.write_table(job.output, pa.table(columns), job.provenance)

"""Load the documents that a benchmark scores, and write the hashes of the documents and of their runs of words.

Calibrations are checked against these hashes.
"""

from pathlib import Path

import pyarrow as pa

import lamina.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data import documents, lm_tasks
from lamina.data.overlap import document_hash, runs
from lamina.runtime.script import running
from lamina.stages.prepare import PrepareTask
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = PrepareTask.read(snakemake)
        if job.text:
            texts = documents.perplexity_texts(
                job.text, Path.cwd(), f"benchmarks.perplexity.{job.name}"
            )
            tested = [(part, []) for part in texts if part.strip()]
        else:
            task = lm_tasks.load_task(
                job.name, Path.cwd(), None, job.task.choices, trust_code=job.task.trust_code
            )
            own = job.task.choices is not None or lm_tasks.is_own(job.name, Path.cwd())
            tested = lm_tasks.test_documents(task, job.task.limit, own)
        columns = {
            "document": pa.array([document_hash(*document) for document in tested], pa.string()),
            "runs": pa.array([runs(*document) for document in tested], pa.list_(pa.uint64())),
        }
        store.write(job.output, pa.table(columns))

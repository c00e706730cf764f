"""Write the hashes of the documents that a benchmark scores, and of their runs of words.

Calibrations are checked against these hashes.
"""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

import pyarrow as pa

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data.benchmark_documents import read_benchmark_documents
from lamina.data.overlap import document_hash, hash_word_runs
from lamina.store import parquet
from lamina_workflow.stages.prepare import PrepareTask

if __name__ == "__main__":
    with run_script(snakemake):
        job = PrepareTask.read(snakemake)
        entry = job.text or job.task
        assert entry is not None  # every benchmark is one of the two
        tested = read_benchmark_documents(job.name, entry, Path.cwd())
        hashes = [document_hash(*document) for document in tested]
        runs_of_words = [hash_word_runs(*document) for document in tested]
        columns = {
            "document": pa.array(hashes, pa.string()),
            "runs": pa.array(runs_of_words, pa.list_(pa.uint64())),
        }
        parquet.write_table(job.output, pa.table(columns), job.provenance)

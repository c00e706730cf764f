"""Write the hashes of the documents that a benchmark scores, and of their word runs.

Calibrations are checked against these hashes. Documents of a perplexity are written too, because
the jobs that measure it have no network.
"""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.data.benchmark_documents import read_benchmark_documents, tabulate_documents
from lamina.store import parquet
from lamina_workflow.stages.prepare import PrepareTask

if __name__ == "__main__":
    with run_script(snakemake):
        job = PrepareTask.read(snakemake)
        entry = job.text or job.task
        assert entry is not None  # every benchmark is a task or a perplexity
        tested = read_benchmark_documents(job.name, entry, Path.cwd())
        table = tabulate_documents(tested, with_text=job.text is not None)
        parquet.write_table(job.output, table, job.provenance)

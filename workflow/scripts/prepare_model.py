"""Find a model, check what it is, and write its manifest."""

from pathlib import Path

import lamina.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.models.manifest import describe, find_model
from lamina.runtime.script import running
from lamina.stages.prepare import PrepareModel
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = PrepareModel.read(snakemake)
        folder = Path.cwd() / job.checkpoint if job.checkpoint else find_model(job.model, job.entry, Path.cwd())
        store.write_json(job.output, describe(job.model, job.entry, folder))

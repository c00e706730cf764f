"""Find a model, check what it is, and write its manifest."""

from pathlib import Path

from lamina.errors import explained
from lamina.models.manifest import describe, find_model
from lamina.stages.prepare_model import PrepareModel
from lamina.store import parquet as store

if __name__ == "__main__":
    with explained():
        job = PrepareModel.read()
        folder = Path.cwd() / job.folder if job.folder else find_model(job.model, job.entry, Path.cwd())
        store.write_json(job.output, describe(job.model, job.entry, folder))

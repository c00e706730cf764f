"""Find a model, dequantise it if it comes quantised from the hub, check what it is, and write its manifest."""

import json
from pathlib import Path

import lamina.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.models.checkpoint import DEQUANTISED, is_quantised, quantisation
from lamina.models.manifest import describe, find_model
from lamina.runtime.script import running
from lamina.stages.prepare import PrepareModel
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = PrepareModel.read(snakemake)
        folder = (
            Path.cwd() / job.checkpoint
            if job.checkpoint
            else find_model(job.model, job.entry, Path.cwd())
        )
        # Only rules before this one see a folder of the user's; what the hub has is known when it is here.
        if (
            is_quantised(folder)
            and quantisation(json.loads((folder / "config.json").read_text())) in DEQUANTISED
        ):
            from lamina.models.dequantise import dequantise

            file, folder = (
                folder / "config.json",
                Path.cwd() / Path(job.output).with_name("checkpoint"),
            )
            dequantise(file, folder, job.entry.dtype, f"models.{job.model}.source")
        store.write_json(job.output, describe(job.model, job.entry, folder))

"""Find a model, dequantise it if it comes quantised from the hub, and write its manifest."""

import json
from pathlib import Path

from lamina_workflow.runtime.script import run_script

import lamina_workflow.runtime.online  # noqa: F401  before a library reads whether it may download
from lamina.models.checkpoint import DEQUANTISED, is_quantised, quantisation_method
from lamina.models.manifest import describe_model, find_model
from lamina.store import parquet
from lamina_workflow.stages.prepare import PrepareModel


def find_folder(job: PrepareModel) -> Path:
    """The folder of the model: a dequantised checkpoint, a local folder, or a download."""
    if job.checkpoint:
        return Path.cwd() / job.checkpoint
    return find_model(job.model, job.entry, Path.cwd())


def must_be_dequantised(folder: Path) -> bool:
    """Whether the weights are quantised in a way that lamina reads.

    A local folder is dequantised by an earlier rule. For a model on the hub this is known only
    after the download.
    """
    if not is_quantised(folder):
        return False
    settings = json.loads((folder / "config.json").read_text())
    return quantisation_method(settings) in DEQUANTISED


if __name__ == "__main__":
    with run_script(snakemake):
        job = PrepareModel.read(snakemake)
        folder = find_folder(job)
        if must_be_dequantised(folder):
            from lamina.models.dequantise import dequantise_model

            checkpoint = Path.cwd() / Path(job.output).with_name("checkpoint")
            location = f"models.{job.model}.source"
            dequantise_model(folder / "config.json", checkpoint, job.entry.dtype, location)
            folder = checkpoint
        manifest = describe_model(job.model, job.entry, folder)
        parquet.write_json(job.output, manifest, job.description)

"""Write a GGUF model, or a folder of quantised weights, as an ordinary checkpoint."""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.models.dequantise import dequantise_model
from lamina_workflow.stages.prepare import DequantiseModel

if __name__ == "__main__":
    with run_script(snakemake):
        job = DequantiseModel.read(snakemake)
        dequantise_model(Path(job.files[0]), Path(job.output), job.dtype)

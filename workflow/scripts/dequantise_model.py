"""Write a GGUF model, or a folder of quantised weights, as an ordinary checkpoint."""

from pathlib import Path

from lamina.models.dequantise import dequantise
from lamina_workflow.runtime.script import running
from lamina_workflow.stages.prepare import DequantiseModel

if __name__ == "__main__":
    with running(snakemake):
        job = DequantiseModel.read(snakemake)
        dequantise(Path(job.files[0]), Path(job.output), job.dtype)

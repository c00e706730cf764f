"""Write the model in a GGUF file as an ordinary checkpoint."""

from pathlib import Path

from lamina.errors import explained
from lamina.models.dequantise import dequantise
from lamina.stages.dequantise_model import DequantiseModel

if __name__ == "__main__":
    with explained():
        job = DequantiseModel.read()
        dequantise(Path(job.file), Path(job.output), job.dtype, f"models.{job.model}.source")

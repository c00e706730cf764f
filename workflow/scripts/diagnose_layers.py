"""Measure what the layers of the base model do on a calibration or a file. Nothing is removed."""

from importlib import import_module
from pathlib import Path

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.engine import memory
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum, parquet
from lamina_workflow.stages.capture import DiagnoseLayers

if __name__ == "__main__":
    with run_script(snakemake):
        job = DiagnoseLayers.read(snakemake)
        method = import_module(f"lamina.diagnosis.{job.diagnosis.kind}")
        manifest = checksum.read_json(job.manifest)
        if job.diagnosis.FILED:
            tokenizer = load_tokenizer(manifest)
            samples = method.read_samples(Path(job.samples), tokenizer, job.diagnosis)
            calibration_samples = []
        else:
            samples = calibrations.read_calibration(job.samples).samples
            calibration_samples = samples
        model = load_model(manifest, check=job.check)
        token_budget = memory.choose_token_budget(job.tokens, model, calibration_samples)
        rows = method.diagnose(model, samples, job.diagnosis, token_budget)
        table = parquet.from_rows("diagnoses", rows, **job.keys)
        parquet.write_table(job.output, table, job.provenance)

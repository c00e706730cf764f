"""Measure what the layers of an unpruned model do on a calibration or a file, with nothing removed."""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data import calibrations
from lamina.engine import memory as room
from lamina.models.load import load_model, load_tokenizer
from lamina.modules import load
from lamina.runtime.script import running
from lamina.stages.capture import DiagnoseLayers
from lamina.store import checksum as seal
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = DiagnoseLayers.read(snakemake)
        method, filed = load(f"lamina.diagnosis.{job.diagnosis.kind}"), job.diagnosis.FILED
        manifest = seal.read_json(job.manifest)
        if filed:
            given = method.read(Path(job.samples), load_tokenizer(manifest), job.diagnosis)
        else:
            given = calibrations.read(job.samples).samples
        model = load_model(manifest, check=job.check)
        rows = method.diagnose(
            model, given, job.diagnosis, room.tokens(job.tokens, model, [] if filed else given)
        )
        store.write(job.output, store.from_rows("diagnoses", rows, **job.keys), job.provenance)

"""Fit one repair for all plan sizes of a selector, or take its fits from a pass that several repairs shared."""

from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.repair import fitting, patch
from lamina.runtime.script import running
from lamina.stages.repair import FitPatch
from lamina.store import checksum as seal
from lamina.store import parquet as store

if __name__ == "__main__":
    with running(snakemake):
        job = FitPatch.read(snakemake)
        manifest = seal.read_json(job.manifest)
        ask = fitting.asked(job, map(seal.read_json, job.plans), manifest["n_layers"])
        groups = fitting.taken(job, ask) if ask.plans else []
        if groups is None:
            files = {job.own: job.calibration} | job.data
            read = {name: calibrations.read(file) for name, file in files.items()}
            groups = fitting.fitted(job, load_model(manifest, check=job.check), ask, read)
        tensors, rows = fitting.written(job, ask, groups)
        patch.save(job.output, job.repair.method, tensors, ask.reasons)
        store.write(job.table, store.from_rows("patches", rows), job.provenance)

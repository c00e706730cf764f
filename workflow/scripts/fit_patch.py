"""Fit one repair for all plan sizes of a selector."""

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
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
        request, groups = (
            fitting.request(map(seal.read_json, job.plans), manifest["n_layers"], job.repair),
            [],
        )
        if request.plans:
            files = {job.own: job.calibration} | job.data
            read = {name: calibrations.read(file) for name, file in files.items()}
            groups = fitting.fit(
                load_model(manifest, check=job.check), request, read, job.weights, job.seed
            )
        tensors, rows = fitting.record(request, groups, job.name)
        patch.save(job.output, job.repair.method, tensors, request.reasons)
        store.write(job.table, store.from_rows("patches", rows), job.provenance)

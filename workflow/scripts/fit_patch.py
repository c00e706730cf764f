"""Fit one repair for all plan sizes of a selector."""

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.repairs import fitting, patch
from lamina.store import checksum, parquet
from lamina_workflow.stages.repair import FitPatch

if __name__ == "__main__":
    with run_script(snakemake):
        job = FitPatch.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        plans = map(checksum.read_json, job.plans)
        request = fitting.sort_plans(plans, manifest["n_layers"], job.repair)
        groups = []
        if request.plans:
            files = {job.own: job.calibration} | job.data
            samples = {name: calibrations.read_calibration(file) for name, file in files.items()}
            model = load_model(manifest, check=job.check)
            groups = fitting.fit_plans(model, request, samples, job.weights, job.seed)
        tensors, rows = fitting.record_fits(request, groups, job.name)
        patch.write_patch(
            job.output,
            job.repair.method,
            tensors,
            request.reasons,
            job.description,
            request.whole_sizes,
        )
        parquet.write_table(job.table, parquet.from_rows("patches", rows), job.provenance)

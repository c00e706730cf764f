"""Measure the removal of one block's units, on the base model or on what a plan leaves of it."""

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.runtime.script import running
from lamina.selection import plans, removals
from lamina.stages.sweep import SweepUnits
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.store.unfinished import Progress, digest

if __name__ == "__main__":
    with running(snakemake):
        job = SweepUnits.read(snakemake)
        plan, rows = plans.read_plan(job.plan) if job.plan else None, []
        progress = Progress(f"{job.output}.unfinished", digest({"job": job.origin}))
        if plan is None or plan.refused is None:
            manifest, removed = seal.read_json(job.manifest), plan.units if plan else []
            share = removals.share(
                manifest["n_layers"], job.units, removed, job.replacements, job.block, job.blocks
            )
            if share:
                files = {job.keys["calibration"]: job.calibration} | job.data
                rows = removals.rows(
                    load_model(manifest, check=job.check),
                    {name: calibrations.read(file) for name, file in files.items()},
                    share,
                    removed,
                    job.pass_,
                    job.tokens,
                    current=job.block == 0,
                    loop=job.loop,
                    replacements=job.replacements.read_records(job.manifests)
                    if job.replacements
                    else None,
                    manifest=manifest,
                    progress=progress,
                )
        store.write(job.output, store.from_rows("sweeps", rows, **job.keys), job.provenance)
        progress.remove()

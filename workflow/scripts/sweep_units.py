"""Measure the removal of one block's units, on the base model or on a model pruned by a plan."""

from importlib import import_module
from pathlib import Path
from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.options.metrics import MODULES
from lamina.selection import plans, removals
from lamina.store import checksum, parquet
from lamina.store.unfinished import Progress, digest_settings
from lamina_workflow.stages.sweep import SweepUnits


def measure_removals(
    job: SweepUnits, removed: list[str], progress: Progress
) -> list[dict[str, Any]]:
    """Rows of table `sweeps` for the units of the job's block; none for a surplus block.

    removed: The units that were removed before the sweep.
    """
    manifest = checksum.read_json(job.manifest)
    units = removals.share_units(manifest["n_layers"], job.units, removed, job.block, job.blocks)
    if not units:
        return []
    model = load_model(manifest, check=job.check)
    files = {job.keys["calibration"]: job.calibration} | job.data
    content_by_name = {name: calibrations.read_calibration(file) for name, file in files.items()}
    questions = None
    if job.asked is not None:
        module = import_module(MODULES[job.pass_])
        asked = job.keys["calibration"]
        questions = module.draw_questions(
            asked, job.asked, content_by_name[asked].samples, model, manifest, Path.cwd()
        )
    return removals.removal_rows(
        model,
        content_by_name,
        units,
        removed,
        job.pass_,
        job.tokens,
        with_current=job.block == 0,
        loop=job.loop,
        progress=progress,
        questions=questions,
    )


if __name__ == "__main__":
    with run_script(snakemake):
        job = SweepUnits.read(snakemake)
        progress = Progress(f"{job.output}.unfinished", digest_settings({"job": job.origin}))
        plan = plans.read_plan(job.plan) if job.plan else None
        rows = []
        if plan is None or plan.refused is None:
            rows = measure_removals(job, plan.units if plan else [], progress)
        parquet.write_table(
            job.output, parquet.from_rows("sweeps", rows, **job.keys), job.provenance
        )
        progress.remove()

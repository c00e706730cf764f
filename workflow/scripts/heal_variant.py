"""Heal one variant: materialise plan and patch, train on calibrations, write what was trained and its curve.

A killed job leaves its progress beside the outputs; a new start with the same settings and files goes on from there.
"""

from pathlib import Path

import lamina.runtime.forkserver  # noqa: F401  before the libraries are imported
from lamina.data import calibrations
from lamina.healing.training import Source
from lamina.models.load import load_quantised
from lamina.modules import load
from lamina.repair import patch
from lamina.runtime.script import running
from lamina.stages.heal import HealVariant
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.store.unfinished import Progress, digest
from lamina.study.variant import Variant

PROGRESS = ".progress.safetensors"

if __name__ == "__main__":
    with running(snakemake):
        job = HealVariant.read(snakemake)
        variant, folder = Variant.parse(job.variant), Path(job.output).parent
        method = load(f"lamina.healing.{job.healing.method}")
        plan = seal.read_json(job.plan)
        rows, progress = [], None
        if plan["units"] and not (job.patch and patch.refused(job.patch, plan["removed"])):
            patches = patch.load(job.patch, plan["removed"]) if job.patch else None
            manifest = seal.read_json(job.manifest)
            base = load_quantised(manifest, getattr(job.healing, "quantise", "none"), job.check)
            files = {variant.calibration: job.calibration} | job.data
            sources = [
                Source(calibrations.read(files[name]).samples, weight)
                for name, weight in job.weights
            ]
            read = [job.manifest, job.plan, *([job.patch] if patches else [])]
            read += [files[name] for name, _ in job.weights]
            progress = Progress(folder / PROGRESS, digest(job.provenance, *map(Path, read)))
            healed, rows = method.heal(base, plan, patches, sources, job.healing, progress)
            method.save(healed, folder)
        else:
            method.save_empty(folder)
        store.write(job.output, store.from_rows("training", rows, **variant.row()), job.provenance)
        if progress:
            progress.remove()

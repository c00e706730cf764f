"""Train one variant on calibrations; write the trained weights and the training curve.

The progress of an interrupted job is kept next to the outputs. A new start with the same settings
and files continues from there.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.healing.adapter import write_empty_adapter
from lamina.healing.batches import TrainingSource
from lamina.healing.training import TrainingRow
from lamina.models.load import load_quantised
from lamina.repairs import patch
from lamina.store import checksum, parquet
from lamina.store.unfinished import Progress, digest_settings
from lamina.variant import Variant
from lamina_workflow.stages.heal import HealVariant

PROGRESS_FILE = ".progress.safetensors"


def can_be_trained(job: HealVariant, plan: dict[str, Any]) -> bool:
    """Whether the plan removes something and the variant's repair, if any, was possible."""
    if not plan["units"]:
        return False
    return not (job.patch and patch.patch_refusal(job.patch, plan["removed"]))


def train_variant(job: HealVariant, plan: dict[str, Any], progress: Progress) -> list[TrainingRow]:
    """Train the variant, write its adapter, and return the training curve."""
    method = import_module(f"lamina.healing.{job.healing.method}")
    patches = patch.read_patch(job.patch, plan["removed"]) if job.patch else None
    manifest = checksum.read_json(job.manifest)
    base = load_quantised(manifest, job.healing.base_quantisation, job.check)
    sources = [
        TrainingSource(calibrations.read_calibration(file).samples, weight)
        for file, (_, weight) in zip(job.training_files, job.weights, strict=True)
    ]
    healed, rows = method.heal(base, plan, patches, sources, job.healing, progress)
    method.save(healed, Path(job.output).parent)
    return rows


if __name__ == "__main__":
    with run_script(snakemake):
        job = HealVariant.read(snakemake)
        folder = Path(job.output).parent
        plan = checksum.read_json(job.plan)
        files_read = [job.manifest, job.plan, *filter(None, [job.patch]), *job.training_files]
        progress = Progress(folder / PROGRESS_FILE, digest_settings(job.settings, *files_read))
        rows: list[TrainingRow] = []
        if can_be_trained(job, plan):
            rows = train_variant(job, plan, progress)
        else:
            write_empty_adapter(folder)
        variant = Variant.parse(job.variant)
        table = parquet.from_rows("training", rows, **variant.row())
        parquet.write_table(job.output, table, job.provenance)
        progress.remove()

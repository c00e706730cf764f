"""Write one variant as a Hugging Face checkpoint or as a GGUF file.

A checkpoint has a tokenizer and a model card.
"""

from pathlib import Path

from lamina_workflow.runtime.script import run_script

import torch

from lamina.evaluation import assembly
from lamina.models.export.card import ONWARD, BaseSource
from lamina.models.export.gguf_file import FILE
from lamina.models.export.save import export_variant
from lamina.models.load import load_model
from lamina.paths import VariantFiles
from lamina.store import checksum, parquet
from lamina.variant import Variant
from lamina_workflow.stages.export import ExportVariant


def export_job(job: ExportVariant) -> str:
    """Write the checkpoint of a job, and return its form."""
    variant = Variant.parse(job.variant)
    adapter = str(Path(job.adapter[0]).parent) if job.adapter else None
    parts = assembly.read_parts(variant, VariantFiles(job.plan, job.patch, adapter))
    assert parts.plan is not None  # the rule requires one
    manifest = checksum.read_json(job.manifest)
    if manifest["dtype"] == "float32":
        manifest["dtype"] = "auto"  # as in the checkpoint: 16-bit weights stay 16-bit
    described_in_card = (variant, Variant.base(variant.model))
    measured = [
        row
        for row in parquet.gather_tables("benchmarks", job.benchmarks).to_pylist()
        if Variant.of(row) in described_in_card
    ]
    return export_variant(
        load_model(manifest, torch.device("cpu")),
        BaseSource(variant, manifest, parts.plan, measured),
        Path(job.output),
        parts.patches,
        parts.adapter,
        job.form,
        job.shard,
    )


def print_usage(folder: Path, form: str) -> None:
    """Print how to load the export, and what its card says about further use."""
    if form == "gguf":
        print(f"{form}: llama-cli -m {folder / FILE}")
    else:
        trust = ", trust_remote_code=True" if form == "code" else ""
        print(f'{form}: AutoModelForCausalLM.from_pretrained("{folder}"{trust})')
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, _, after_heading = card.partition(f"{ONWARD}\n\n")
    section, _, _ = after_heading.partition("\n\n## ")
    print(section.replace("FOLDER", str(folder)), end="\n" if after_heading else "")


if __name__ == "__main__":
    with run_script(snakemake):
        job = ExportVariant.read(snakemake)
        form = export_job(job)
        print_usage(Path(job.output), form)

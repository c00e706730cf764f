"""Write one variant as a Hugging Face checkpoint with tokenizer, model card and mergekit recipe, or as a GGUF file."""

from pathlib import Path

import torch

from lamina.errors import LaminaError
from lamina.evaluation import assembly
from lamina.models.export.card import ONWARD, Source
from lamina.models.export.gguf_file import FILE
from lamina.models.export.save import export
from lamina.models.load import load_model
from lamina.runtime.script import running
from lamina.stages.export import ExportVariant
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with running(snakemake):
        job = ExportVariant.read(snakemake)
        variant, folder = Variant.parse(job.variant), Path(job.output)
        parts = assembly.read(variant)
        if parts.plan is None:
            raise LaminaError(
                f"{variant} is the unpruned model, which is its own checkpoint. Name a variant."
            )
        manifest = seal.read_json(job.manifest)
        described = (variant, Variant.base(variant.model))
        measured = store.gather("benchmarks", job.benchmarks).to_pylist()
        form = export(
            load_model(manifest, torch.device("cpu")),
            Source(
                variant,
                manifest,
                parts.plan,
                [row for row in measured if Variant.of(row) in described],
            ),
            folder,
            parts.patches,
            parts.adapter,
            job.form,
            job.shard,
        )
        trust = ", trust_remote_code=True" if form == "code" else ""
        load = f'AutoModelForCausalLM.from_pretrained("{folder}"{trust})'
        print(f"{form}: {f'llama-cli -m {folder / FILE}' if form == 'gguf' else load}")
        card = (folder / "README.md").read_text(encoding="utf-8")
        _, _, after = card.partition(f"{ONWARD}\n\n")
        print(
            after.partition("\n\n## ")[0].replace("FOLDER", str(folder)), end="\n" if after else ""
        )

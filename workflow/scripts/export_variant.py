"""Write one variant as a Hugging Face checkpoint with tokenizer, model card and mergekit recipe."""

import argparse
import json
from pathlib import Path

import torch

from lamina.errors import LaminaError, explained
from lamina.evaluation import variants
from lamina.models.export import Source, export
from lamina.models.export_card import ONWARD
from lamina.models.load import load_model
from lamina.tables import store
from lamina.variant import EXPORTED_AS, Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", type=Variant.parse, required=True, help="what to export, as text")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the variant's files are")
    parser.add_argument("--benchmarks", type=Path, nargs="*", default=[], help=".parquet files of table benchmarks")
    parser.add_argument("--form", choices=EXPORTED_AS, default="auto")
    parser.add_argument("--max-shard-size", default="5GB", help="largest weights file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    arguments = parser.parse_args()
    parts = variants.read(arguments.variant, arguments.results)
    if parts.plan is None:
        raise LaminaError(f"{arguments.variant} is the unpruned model, which is its own checkpoint. Name a variant.")
    manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    described = (arguments.variant, Variant.base(arguments.variant.model))
    measured = store.gather("benchmarks", arguments.benchmarks).to_pylist()
    form = export(
        load_model(manifest, torch.device("cpu")),
        Source(arguments.variant, manifest, parts.plan, [row for row in measured if Variant.of(row) in described]),
        arguments.output,
        parts.patches,
        parts.adapter,
        arguments.form,
        arguments.max_shard_size,
    )
    trust = ", trust_remote_code=True" if form == "code" else ""
    print(f'{form}: AutoModelForCausalLM.from_pretrained("{arguments.output}"{trust})')
    card = (arguments.output / "README.md").read_text(encoding="utf-8")
    _, _, after = card.partition(f"{ONWARD}\n\n")
    print(after.partition("\n\n## ")[0].replace("FOLDER", str(arguments.output)), end="\n" if after else "")


if __name__ == "__main__":
    with explained():
        main()

"""Write one variant as a Hugging Face checkpoint with tokenizer, model card and mergekit recipe."""

import argparse
import json
from pathlib import Path

import torch

from lamina.errors import explained
from lamina.models.export import FORMS, Source, export
from lamina.models.load import load_model
from lamina.recovery import patch
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--patch", type=Path, help=".safetensors of the recovery; left out for recovery none")
    parser.add_argument("--adapter", type=Path, help="folder of the adapter; left out for healing none")
    parser.add_argument("--recovery", required=True)
    parser.add_argument("--healing", required=True)
    parser.add_argument("--benchmarks", type=Path, nargs="*", default=[], help=".parquet files of table benchmarks")
    parser.add_argument("--form", choices=FORMS, default="auto")
    parser.add_argument("--max-shard-size", default="5GB", help="largest weights file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    arguments = parser.parse_args()
    manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    ours = {key: plan[key] for key in ("calibration", "selector", "removed")}
    ours |= {"recovery": arguments.recovery, "healing": arguments.healing}
    measured = store.gather("benchmarks", arguments.benchmarks).to_pylist()
    wanted = [row for row in measured if row["removed"] == 0 or all(row[key] == ours[key] for key in ours)]
    patches = patch.load(arguments.patch, plan["removed"]) if arguments.patch else None
    form = export(
        load_model(manifest, torch.device("cpu")),
        Source(manifest, plan, arguments.recovery, arguments.healing, wanted),
        arguments.output,
        patches,
        arguments.adapter,
        arguments.form,
        arguments.max_shard_size,
    )
    trust = ", trust_remote_code=True" if form == "code" else ""
    print(f'{form}: AutoModelForCausalLM.from_pretrained("{arguments.output}"{trust})')


if __name__ == "__main__":
    with explained():
        main()

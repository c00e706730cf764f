"""Heal one variant: materialise plan and patch, train on calibrations, write what was trained and its curve.

A killed job leaves its progress beside the outputs; started again with the same settings and files, it goes on there.
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.config import healings
from lamina.data import calibrations
from lamina.errors import LaminaError, explained
from lamina.healing.progress import Progress, digest
from lamina.healing.training import Source
from lamina.models.load import load_folder, load_model, placement
from lamina.recovery import patch
from lamina.tables import store
from lamina.variant import Variant

PROGRESS = ".progress.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", type=Variant.parse, required=True, help="what the adapter makes, as text")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--patch", type=Path, help=".safetensors of the recovery; left out for recovery none")
    parser.add_argument("--data", nargs="*", default=[], help="NAME=FILE of the calibrations that its options add")
    parser.add_argument("--options", type=json.loads, required=True, help="the healing's options, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder of the adapter")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options = healings.read(arguments.options)
    method = importlib.import_module(f"lamina.healing.{options.method}")
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    rows, progress = [], None
    if plan["units"] and not (arguments.patch and patch.refused(arguments.patch, plan["removed"])):
        patches = patch.load(arguments.patch, plan["removed"]) if arguments.patch else None
        base = _load(json.loads(arguments.manifest.read_text(encoding="utf-8")), getattr(options, "quantise", "none"))
        own = arguments.variant.calibration
        files = {own: arguments.calibration, **dict(entry.split("=", 1) for entry in arguments.data)}
        weights = options.weights(own)
        sources = [Source(calibrations.read(files[name]).samples, weight) for name, weight in weights.items()]
        read = [arguments.manifest, arguments.plan, *([arguments.patch] if patches else []), *map(files.get, weights)]
        progress = Progress(arguments.output / PROGRESS, digest([arguments.options, weights, arguments.code], *read))
        healed, rows = method.heal(base, plan, patches, sources, options, progress)
        method.save(healed, arguments.output)
    else:
        method.save_empty(arguments.output)
    table = store.from_rows("training", rows, **arguments.variant.row())
    store.write(arguments.output / "training.parquet", table, store.provenance(vars(arguments)))
    if progress:
        progress.remove()


def _load(manifest: dict[str, Any], quantise: str) -> PreTrainedModel:
    """The unpruned model, its weights in 4 bits if they shall be."""
    if quantise == "none":
        return load_model(manifest)
    try:
        options = placement(None, True, manifest["dtype"])
    except LaminaError as error:
        raise LaminaError(f"quantise: {quantise} cannot be had here. {error} Or write quantise: none.") from error
    trusted = manifest["trust_remote_code"]
    return load_folder(manifest["path"], manifest["dtype"], trusted, manifest["source"], **options)


if __name__ == "__main__":
    with explained():
        main()

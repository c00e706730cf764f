"""Heal one variant: materialise plan and patch, train an adapter on the calibration, write it and its curve."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.config import healings
from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.models.materialise import materialise
from lamina.recovery import patch
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", type=Variant.parse, required=True, help="what the adapter makes, as text")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--patch", type=Path, help=".safetensors of the recovery; left out for recovery none")
    parser.add_argument("--options", type=json.loads, required=True, help="the healing's options, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder of the adapter")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options = healings.read(arguments.options)
    method = importlib.import_module(f"lamina.healing.{options.method}")
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    rows = []
    if plan["units"]:
        patches = patch.load(arguments.patch, plan["removed"]) if arguments.patch else None
        base = load_model(json.loads(arguments.manifest.read_text(encoding="utf-8")))
        samples = calibrations.read(arguments.calibration).samples
        adapted, rows = method.heal(materialise(base, plan, patches), samples, options)
        method.save(adapted, arguments.output)
    else:
        method.save_empty(arguments.output)
    table = store.from_rows("training", rows, **arguments.variant.row())
    store.write(arguments.output / "training.parquet", table, store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()

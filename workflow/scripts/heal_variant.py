"""Heal one variant: materialise plan and patch, train an adapter on the calibration, write it and its curve."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.models.variant import materialise
from lamina.recovery import patch
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--patch", default="", help=".safetensors of the recovery; empty for recovery none")
    parser.add_argument("--recovery", required=True)
    parser.add_argument("--healing", required=True, help="name of the healing in the configuration")
    parser.add_argument("--options", type=json.loads, required=True, help="its entry, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder of the adapter")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    keys = {key: plan[key] for key in ("model", "calibration", "selector", "removed")}
    keys |= {"recovery": arguments.recovery, "healing": arguments.healing}
    method = importlib.import_module(f"lamina.healing.{arguments.options['method']}")
    rows = []
    if plan["units"]:
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
        patches = patch.load(arguments.patch, plan["removed"]) if arguments.patch else None
        variant = materialise(load_model(manifest), plan, patches)
        samples = calibrations.read(arguments.calibration).samples
        adapted, rows = method.heal(variant, samples, method.Options.read(arguments.options))
        method.save(adapted, arguments.output)
    else:
        method.save_empty(arguments.output)
    table = store.from_rows("training", rows, **keys)
    store.write(arguments.output / "training.parquet", table, store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()

"""Measure the removal of one block's units, on the base model or on what a plan leaves of it."""

import argparse
import json
from pathlib import Path

from lamina import tables
from lamina.data import calibrations
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.pruning import plans
from lamina.sweep import engine

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument("--plan", type=Path, help="units already removed; none for the base model")
    parser.add_argument("--what", required=True, choices=["removal", "stream"], help="the pass to run")
    parser.add_argument("--units", required=True, choices=["layer", "attention", "mlp"])
    parser.add_argument("--block", required=True, type=int)
    parser.add_argument("--blocks", required=True, type=int)
    parser.add_argument("--tokens", required=True, type=int, help="budget of one pass")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector, removed")
    parser.add_argument("--provenance", default="{}", type=json.loads)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        plan = plans.read(args.plan) if args.plan else None
        rows = []
        if plan is None or plan.refused is None:
            removed = plan.units if plan else []
            manifest = json.loads(args.manifest.read_text())
            units = engine.all_units(manifest["n_layers"], args.units, removed)
            mine = engine.share_by_cost(units, manifest["n_layers"], args.block, args.blocks)
            if mine:
                samples = calibrations.read(args.calibration).samples
                scores = engine.sweep(load_model(manifest), samples, mine, removed, args.what, args.tokens)
                rows = scores.rows([engine.CURRENT, *mine] if args.block == 0 else mine)
        tables.write(args.output, tables.from_rows("sweeps", rows, **args.keys), args.provenance)

"""Choose the units that one selector removes at one size."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.errors import explained
from lamina.search import plans
from lamina.search.evidence import read_angles, read_step
from lamina.search.plans import Plan, Request, Step, protected_layers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--selector", required=True, type=json.loads, help="its entry in the config, as JSON")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector, removed")
    parser.add_argument("--previous", help="the plan one unit shorter")
    parser.add_argument("--relevance", help="scores of the model as the previous plan leaves it")
    parser.add_argument("--sweep", help="the sweep behind those scores")
    parser.add_argument("--score", default="acc_norm", choices=["acc", "acc_norm"])
    parser.add_argument("--activations", help="distances between boundaries, for runs of layers")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        entry, n_layers = args.selector, json.loads(args.manifest.read_text())["n_layers"]
        metric = entry.get("metric")
        request = Request(
            args.keys["removed"], entry["units"], n_layers, protected_layers(entry["protect"], n_layers), entry["seed"]
        )
        empty = Plan(**args.keys, metric=metric, strategy=entry["strategy"], kind=entry["units"])
        previous = plans.read(args.previous) if args.previous else empty
        refused, step = previous.refused, Step()
        if refused is None and args.relevance:
            refused, step = read_step(args.relevance, args.sweep, metric, args.score, args.keys["calibration"])
        if args.activations:
            step = Step(angles=read_angles(args.activations, metric))
        if refused:
            plan = Plan(**args.keys, metric=metric, strategy=entry["strategy"], kind=entry["units"], refused=refused)
        else:
            plan = importlib.import_module(f"lamina.search.{entry['strategy']}").choose(request, step, previous)
        plans.write(args.output, plan)

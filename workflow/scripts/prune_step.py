"""Choose the units that one selector removes at one size."""

import argparse
import importlib
import json
from pathlib import Path

from lamina.config import selectors
from lamina.data.calibrations import METADATA_KEY
from lamina.errors import explained
from lamina.relevance.columns import Context
from lamina.search import plans
from lamina.search.evidence import read_angles, read_step
from lamina.search.plans import Plan, Request, Step, protected_layers
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--calibration", required=True, help="tells the accuracy of guessing")
    parser.add_argument("--selector", required=True, type=json.loads, help="its options in the config, as JSON")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector, removed")
    parser.add_argument("--previous", help="the plan one unit shorter")
    parser.add_argument("--sweep", help="what the model as the previous plan leaves it loses with each unit")
    parser.add_argument("--score", default="acc_norm", choices=["acc", "acc_norm"])
    parser.add_argument("--activations", help="distances between boundaries, for runs of layers")
    parser.add_argument("--donors", type=json.loads, help="whose layers may take the places of the model's own")
    parser.add_argument("--also", type=json.loads, default={}, help="the same of other calibrations, with weights")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        selector, n_layers = selectors.read(args.selector), json.loads(args.manifest.read_text())["n_layers"]
        metric, removed = selector.metric, args.keys["removed"]
        protected = protected_layers(selector.protect, n_layers)
        request = Request(removed, selector.units, n_layers, protected, selector.seed)
        empty = Plan(**args.keys, metric=metric, strategy=selector.strategy, kind=selector.units)
        previous = plans.read(args.previous) if args.previous else empty
        refused, step = previous.refused, Step()
        if refused is None and args.sweep:
            own = {"calibration": args.calibration, "sweep": args.sweep, "score": args.score}
            read, gone = {args.keys["calibration"]: own} | args.also, previous.removed if args.previous else 0
            steps = []
            for name, files in read.items():
                facts = json.loads(store.read(files["calibration"], ["sample"]).schema.metadata[METADATA_KEY])
                # An iterative plan is made on a model that lacks what the previous one removed, any other on the base.
                context = Context(facts["chance_accuracy"], files["score"], gone, selector.seed)
                reason, found = read_step(files["sweep"], metric, context, name)
                refused = refused or reason
                steps.append(found)
            step = steps[0]
            if args.also and refused is None:
                mixture = importlib.import_module("lamina.search.mixture")
                weights = [1.0, *(each["weight"] for each in args.also.values())]
                step = mixture.mixed(steps, weights, selector.combine)
        if args.activations:
            step = Step(angles=read_angles(args.activations, metric))
        if refused:
            plan = Plan(**args.keys, metric=metric, strategy=selector.strategy, kind=selector.units, refused=refused)
        else:
            way = "donors" if args.donors else selector.strategy
            plan = importlib.import_module(f"lamina.search.{way}").choose(request, step, previous)
            if args.donors:
                donors = importlib.import_module("lamina.search.donors")
                plan = donors.with_records(plan, donors.read(args.donors["records"]))
        plans.write(args.output, plan)

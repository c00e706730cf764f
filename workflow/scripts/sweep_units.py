"""Measure the removal of one block's units, on the base model or on what a plan leaves of it."""

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.config import recoveries
from lamina.config.metrics import METRICS, MODULES
from lamina.data import calibrations
from lamina.data.calibrations import Calibration
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.models.surgery import parse
from lamina.search import plans
from lamina.search.evaluator import Evaluator
from lamina.search.losses import loss_of
from lamina.search.plans import protected_layers
from lamina.streams.sources import Source
from lamina.sweep import engine, room
from lamina.sweep.candidates import Candidate
from lamina.tables import store
from lamina.variant import DONOR


def swept(
    args: argparse.Namespace, model: PreTrainedModel, calibration: Calibration, units: Sequence[str], removed: list[str]
) -> list[dict[str, Any]]:
    """Rows of the sweep. Budgets and passes of their own are imported by name: editing one stales only its own."""
    args.tokens = room.tokens(args.tokens, model, calibration.samples, len(units) + 2)
    if args.pass_ in MODULES:
        module = importlib.import_module(MODULES[args.pass_])
        if args.drawn:
            return list(module.rows(model, calibration, units, removed, args.pass_, args.drawn, args.tokens))
        return list(module.rows(model, calibration.samples, units, removed, args.pass_, args.tokens))
    if args.budget or args.recovery or args.donors:
        return _evaluated(args, model, calibration, units, removed)
    names = [engine.CURRENT, *units] if args.block == 0 else units
    return engine.sweep(model, calibration.samples, units, removed, args.pass_, args.tokens).rows(names)


def _evaluated(
    args: argparse.Namespace, model: PreTrainedModel, calibration: Calibration, units: Sequence[str], removed: list[str]
) -> list[dict[str, Any]]:
    """Rows of a sweep that units leave early, with a repair in place, or with donors; layers that must stay are not
    measured.

    `chosen` says on which unit a budget settled.
    """
    loop, options = args.recovery, args.budget
    kept = protected_layers((options or loop or args.donors)["protect"], engine.layer_count(model))
    current = Candidate(frozenset(removed))
    there = [unit for unit in units if parse(unit)[0] not in kept]
    named = {current.changed(unit) if args.donors else current.without(unit): unit for unit in there}
    layers = None
    if args.donors:
        donors = importlib.import_module("lamina.models.donors")
        donors.check(model, json.loads(args.manifest.read_text()), args.donors["records"])
        layers = donors.donated(model, [*removed, *there], args.donors["records"])
    candidates, outputs = list(named), options is None or METRICS[options["metric"]].column.startswith("output_")
    repairs = None
    if loop:
        looped = importlib.import_module("lamina.search.looped")
        method, scored = recoveries.read(loop["options"]), args.keys["calibration"]
        added = {name: calibrations.read(file) for name, file in (entry.split("=", 1) for entry in args.data)}
        # What is scored for another calibration's plans need not be what their recovery is fitted on.
        weights = method.weights(loop.get("own", scored))
        weights.setdefault(scored, 0.0)
        sources = [
            Source((calibration if name == scored else added[name]).sequences(), weight)
            for name, weight in weights.items()
        ]
        at = list(weights).index(scored)
        repairs = looped.fitted(model, sources, [current, *candidates], method, loop["seed"], at)
    with engine.opened(model, calibration.samples, args.tokens, outputs, layers) as session:
        observed = {
            candidate: session.observation(current, unit)
            for candidate, unit in named.items()
            if not parse(unit)[1].startswith(DONOR)
        }
        measuring = looped.Looped(session, repairs) if repairs else session
        if options is None:
            everyone = {engine.CURRENT: current} | {unit: candidate for candidate, unit in named.items()}
            looks = {named[candidate]: look for candidate, look in observed.items()}
            measuring.measure(range(len(calibration.samples)), everyone, looks)
            return list(session.scores.rows(everyone if args.block == 0 else named.values()))
        loss = loss_of(options["metric"], options["score"])
        evaluator = Evaluator(measuring, loss, [current], named | {current: engine.CURRENT}, observed)
        budget = importlib.import_module(f"lamina.search.{options['budget']}")
        chosen = budget.run(evaluator, candidates, options, calibration.facts["chance_accuracy"])
    rows = evaluator.rows([current, *candidates])
    return [row | {"chosen": chosen and row["unit"] == named[chosen]} for row in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument("--plan", type=Path, help="units already removed; none for the base model")
    parser.add_argument("--pass", dest="pass_", required=True, choices=["removal", "stream", *MODULES])
    parser.add_argument("--units", required=True, choices=["layer", "attention", "mlp"])
    parser.add_argument("--budget", type=json.loads, help="what lets units leave early; by default none does")
    parser.add_argument("--recovery", type=json.loads, help="what repairs the candidates; by default nothing does")
    parser.add_argument("--donors", type=json.loads, help="whose layers may take the places of the model's own")
    parser.add_argument("--drawn", type=json.loads, help="what a pass over random cut models draws")
    parser.add_argument("--data", nargs="*", default=[], help="NAME=FILE of the calibrations that its options add")
    parser.add_argument("--block", required=True, type=int)
    parser.add_argument("--blocks", required=True, type=int)
    parser.add_argument("--tokens", required=True, help="budget of one pass, or auto")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector, removed")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        plan = plans.read(args.plan) if args.plan else None
        rows = []
        if plan is None or plan.refused is None:
            removed = plan.units if plan else []
            manifest = json.loads(args.manifest.read_text())
            units = engine.all_units(manifest["n_layers"], args.units, removed)
            if args.donors:
                donors = importlib.import_module("lamina.search.donors")
                args.donors["records"] = donors.read(args.donors["records"])
                units = donors.units(units, removed, args.donors["names"])
            mine = engine.share_by_cost(units, manifest["n_layers"], args.block, args.blocks)
            if mine:
                rows = swept(args, load_model(manifest), calibrations.read(args.calibration), mine, removed)
        store.write(args.output, store.from_rows("sweeps", rows, **args.keys), store.provenance(vars(args)))

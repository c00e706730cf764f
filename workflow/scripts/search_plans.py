"""Search the sets of units that one selector removes, at every size that a study asks for."""

import argparse
import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lamina.config import recoveries, selectors
from lamina.config.metrics import METRICS
from lamina.data import calibrations
from lamina.data.calibrations import Calibration
from lamina.errors import explained
from lamina.models.load import load_model
from lamina.relevance.columns import Context, from_table
from lamina.search import contest
from lamina.search.evaluator import Evaluator
from lamina.search.losses import loss_of
from lamina.search.plans import Plan, protected_layers
from lamina.search.trials import Trials, split, without
from lamina.streams.sources import Source
from lamina.sweep import engine, room
from lamina.sweep.candidates import Candidate
from lamina.sweep.scores import Scores
from lamina.tables import store

# Columns of table `sweeps` for which outputs need not be compared with the unpruned model's.
OWN = ("correct", "nll", "gold_margin")


def refusal(args: argparse.Namespace, selector: Any, calibration: Calibration, session: engine.Session) -> str | None:
    """Why no plan can be made: the unpruned model at chance tells no removal from another."""
    session.measure(range(len(calibration.samples)), {engine.CURRENT: Candidate()})
    rows = store.from_rows("sweeps", session.scores.rows([engine.CURRENT]), removed=0, **args.keys)
    undefined = getattr(importlib.import_module(f"lamina.relevance.{selector.metric}"), "undefined", lambda *_: None)
    found = undefined(from_table(rows), Context(calibration.facts["chance_accuracy"], args.score))
    remedy = "Give the calibration more samples, or choose a task that the model can do, or another metric."
    return f"{found[0]}. {remedy}" if found else None


def searched(args: argparse.Namespace, selector: Any) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans, and the rows of table `searches`."""
    model, calibration = load_model(json.loads(args.manifest.read_text())), calibrations.read(args.calibration)
    samples, sequences, depth = calibration.samples, calibration.sequences(), engine.layer_count(model)
    kept = protected_layers(selector.protect, depth)
    units = [unit for unit in engine.all_units(depth, selector.units) if int(unit.split(".")[0]) not in kept]
    seen, held_back = split(sequences, selector.held_back, selector.seed)
    described = {"metric": selector.metric, "strategy": selector.strategy, "kind": selector.units}
    layers = None
    if args.donors:
        manifest = json.loads(args.manifest.read_text())
        donors, steps = (importlib.import_module(f"lamina.{part}.donors") for part in ("models", "search"))
        records = steps.read(args.donors["records"])
        donors.check(model, manifest, records)
        layers = donors.donated(model, set(steps.units(units, [], selector.donors)) - set(units), records)
    outputs = METRICS[selector.metric].column not in OWN
    tokens = room.tokens(args.tokens, model, samples, depth + 2)
    with engine.opened(model, samples, tokens, outputs, layers) as session:
        if refused := refusal(args, selector, calibration, session):
            return [Plan(**args.keys, removed=size, **described, refused=refused) for size in args.sizes], []
        measuring: Any = session
        growing: Any = None
        if args.recovery:
            looped = importlib.import_module("lamina.search.looped")
            options, own = recoveries.read(args.recovery["options"]), args.keys["calibration"]
            told = {own: [sequences[number] for number in seen]}
            back = [sequences[number] for number in held_back]
            told |= {name: without(calibrations.read(file).sequences(), back) for name, file in args.data}
            sources = [Source(told[name], weight) for name, weight in options.weights(own).items()]
            growing = importlib.import_module("lamina.search.growing").Growing(
                lambda candidates: looped.fitted(model, sources, candidates, options, args.recovery["seed"]),
                seen,
                len(samples),
                depth,
            )
            measuring = looped.Looped(session, growing.repairs)

        def prepare(candidates: Sequence[Candidate]) -> None:
            # The trials remember losses; scores of every set ever tried would fill the memory.
            session.scores = Scores(samples)
            if growing:
                growing.fit(candidates)

        trials = Trials(
            Evaluator(measuring, loss_of(selector.metric, args.score)),
            len(samples),
            args.output.with_suffix(".log"),
            origin(args),
            lambda: session.layer_tokens,
            prepare,
        )
        lengths = np.array([len(sequence) for sequence in sequences])
        result = contest.run(trials, units, args.sizes, selector, seen, held_back, lengths)
    plans = []
    for size, end in result.found.items():
        gone = sorted(end.removed, key=lambda unit: int(unit.split(".")[0]))
        between: list[float | None] = [None] * (len(gone) - 1)
        before, after = (1 - result.losses[at] if selector.metric == "accuracy" else None for at in (0, size))
        found = {"units": gone, "scores": [result.losses[size]] * len(gone)}
        around = {"accuracy_before": [before, *between], "accuracy_after": [*between, after]}
        plan = Plan(**args.keys, removed=size, **described, **found, **around)
        plans.append(steps.with_records(plan, records) if args.donors else plan)
    return plans, list(result.rows)


def origin(args: argparse.Namespace) -> str:
    """What a log must come from to be gone on with."""
    files = [args.manifest, args.calibration, *(file for _, file in args.data)]
    content = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256(repr([store.provenance(vars(args)), content]).encode()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument("--selector", required=True, type=json.loads, help="its options in the config, as JSON")
    parser.add_argument("--sizes", required=True, type=json.loads, help="numbers of units to remove")
    parser.add_argument("--score", default="acc_norm", choices=["acc", "acc_norm"])
    parser.add_argument("--recovery", type=json.loads, help="what repairs the candidates; by default nothing does")
    parser.add_argument("--donors", type=json.loads, help="whose layers may take the places of the model's own")
    parser.add_argument("--data", nargs="*", default=[], help="NAME=FILE of the calibrations that its options add")
    parser.add_argument("--tokens", required=True, help="budget of one pass, or auto")
    parser.add_argument("--keys", required=True, type=json.loads, help="model, calibration, selector")
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    parser.add_argument("--plans", required=True, type=Path, help=".json of all plans")
    parser.add_argument("--output", required=True, type=Path, help=".parquet of all that was tried")
    args = parser.parse_args()
    args.data = [(name, Path(file)) for name, _, file in (entry.partition("=") for entry in args.data)]
    with explained():
        plans, rows = searched(args, selectors.read(args.selector))
        store.write_text(args.plans, json.dumps([asdict(plan) for plan in plans], indent=2) + "\n")
        store.write(args.output, store.from_rows("searches", rows, **args.keys), store.provenance(vars(args)))
        args.output.with_suffix(".log").unlink(missing_ok=True)

"""Ways to choose 3, 5 and 7 of SmolLM2's layers, judged on questions that no choice saw.

`PYTHONPATH=src python reports/scripts/papers_protocol.py WAY TASK COUNT DRAW FOLDER`: one of the WAYS, `arc_easy` or
`piqa`, questions that choose, a draw of them, and the folder of `{WAY}-{TASK}-{COUNT}-{DRAW}.json`, the units in order
of their removal. A run that was killed goes on after its last step. `make smollm2 DATA=FOLDER` first. It ran at commit
b53dd796: budget `race`, with which `accuracy` was measured, has been removed since.
"""

import json
import sys
import time
from itertools import combinations
from pathlib import Path

import numpy as np
from portfolio_regret import ROOT, TOKENS, WORLDS, described, written

from lamina.data.calibrations import CalibrationSamples
from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import CURRENT, Candidate
from lamina.models.load import load_folder
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.units import all_units
from lamina.options.calibrations import Calibration as Entry
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import rank_units
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.plans import PlanRequest
from lamina.selection.strategies.pairwise import estimate_effects, minimise
from lamina.store import parquet

SIZES = (3, 5, 7)
# The paper takes the least relevant layer each time; the race may take one that loses half a point more.
BUDGET = {"seed": 0, "confidence": 0.95, "tolerance": 0.005}


def questions(task: str, part: str, count: int | None = None, draw: int = 0) -> CalibrationSamples:
    """Questions of `pool` (a draw of them) or `held`."""
    lines = (ROOT / f"models/smollm2/data/{task}_{part}.jsonl").read_text().splitlines()
    order = np.random.default_rng(draw).permutation(len(lines)) if count else range(len(lines))
    file = written(
        f"{task}_{part}_{count}_{draw}.jsonl", [lines[number] for number in order[:count]]
    )
    return prepare_calibration(
        task, Entry.from_options({"choices": file}), described(WORLDS["smollm2"]), ROOT
    )


def raced(model, of, gone, units):
    """The unit whose removal loses least accuracy, and what each unit's score is, on how many questions."""
    from lamina.selection import (
        race,  # at the commit of reports/protocol.md; lamina has no race now
    )

    with sweep.open_session(model, of.samples, TOKENS, False) as session:
        evaluator = Evaluator(session, loss_of("accuracy", "acc_norm"))
        candidates = [Candidate(frozenset([*gone, unit])) for unit in units]
        best = race.run(
            evaluator, candidates, BUDGET | {"step": len(gone) + 1}, of.facts["chance_accuracy"]
        )
        seen = {}
        for unit, candidate in zip(units, candidates, strict=True):
            right = [row["correct_norm"] for row in session.scores.rows([candidate])]
            seen[unit] = [float(np.mean(right)), len(right)]
        return units[candidates.index(best)], seen


def lowest(model, of, gone, units, metric):
    """Units in the order of a metric of a full sweep."""
    pass_ = "stream" if metric == "cosine" else "removal"
    scores = sweep.sweep_units(model, of.samples, units, gone, pass_, TOKENS, outputs=False)
    keys = {"model": "smollm2", "calibration": "own", "selector": metric, "removed": len(gone)}
    columns = from_table(parquet.from_rows("sweeps", scores.rows([CURRENT, *units]), **keys))
    order = rank_units(
        columns, metric, Context(of.facts["chance_accuracy"], "acc_norm", len(gone), 0)
    )
    return sorted(
        zip(columns.units, map(float, order.draws[0]), strict=True), key=lambda entry: entry[1]
    )


def pairs(model, of, depth):
    """The best set of each size by single and pair effects on the loss."""
    units = [str(layer) for layer in range(depth)]
    sets = [
        frozenset[str](),
        *(frozenset(some) for size in (1, 2) for some in combinations(units, size)),
    ]
    losses = {each: [] for each in sets}
    for start in range(0, len(of.samples), 25):
        some = of.samples[start : start + 25]
        with sweep.open_session(model, some, TOKENS, False) as session:
            session.measure(range(len(some)), {each: Candidate(each) for each in sets})
            for each in sets:
                losses[each] += [
                    session.scores.sample(each, number)["nll"] for number in range(len(some))
                ]
        print(start, flush=True)
    a, b = estimate_effects({each: np.array(loss) for each, loss in losses.items()}, units)
    return {size: minimise(a, b, size) for size in SIZES}, a.tolist(), b.tolist()


def main(way: str, task: str, count: int, draw: int, folder: Path) -> None:
    out = folder / f"{way}-{task}-{count}-{draw}.json"
    found = json.loads(out.read_text()) if out.is_file() else {"steps": []}
    of = questions(task, "pool", count, draw)
    model = load_folder(str(WORLDS["smollm2"].folder), WORLDS["smollm2"].dtype, False)
    depth = sweep.layer_count(model)
    parts = sublayers_of(layers_of(model)[0])
    counts = {
        part: sum(w.numel() for each in some for w in each.module.parameters())
        for part, some in parts.items()
    }
    attention = counts["attention"] / sum(counts.values())
    if way == "pairwise":
        if not found["steps"]:
            sets, a, b = pairs(model, of, depth)
            found["steps"] = [
                {"size": size, "units": [str(n) for n in units]} for size, units in sets.items()
            ]
            out.write_text(json.dumps(found | {"alone": a, "together": b}))
        return
    while len(found["steps"]) < max(SIZES):
        gone = [unit for step in found["steps"] for unit in step["units"]]
        kind = "both" if way == "halves" else "layer"
        units, began = all_units(depth, kind, gone), time.perf_counter()
        if way == "accuracy":
            unit, seen = raced(model, of, gone, units)
            step = {"units": [unit], "seen": seen}
        else:
            metric = "cosine" if way == "cosine" else "perplexity"
            ranked = lowest(model, of, gone, units, metric)
            request = PlanRequest(
                len(found["steps"]) + 1, kind, depth, frozenset(), 0, attention_share=attention
            )
            step = {
                "units": [unit for unit, _ in request.lowest(ranked, gone)],
                "ranked": ranked[:8],
            }
        step["seconds"] = round(time.perf_counter() - began)
        found["steps"].append(step)
        out.write_text(json.dumps(found))
        print(way, task, step["units"], step["seconds"], flush=True)


WAYS = ("accuracy", "perplexity", "cosine", "halves", "pairwise")
if __name__ == "__main__":
    way, task, count, draw, folder = sys.argv[1:]
    assert way in WAYS, way
    main(way, task, int(count), int(draw), Path(folder).resolve())

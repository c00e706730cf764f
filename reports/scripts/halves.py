"""Removal of attention and MLPs at the price of their parameters, against removal of whole layers.

`PYTHONPATH=src python reports/scripts/halves.py reference addition,facts 250 1,2,3 OUT.csv`: one of the WORLDS of
portfolio_regret.py, tasks, documents that choose, sizes in layers.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from portfolio_regret import TOKENS, WORLDS, documents

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.units import all_units, parse_unit
from lamina.selection.plans import PlanRequest

HEAD = "task units_and_strategy removed layers_worth units loss accuracy base_loss base_accuracy"


def losses(model, samples, sets):
    """Mean loss and accuracy of each set of units."""
    found = {}
    with sweep.open_session(model, samples, TOKENS, False) as session:
        session.measure(range(len(samples)), {each: Candidate(each) for each in sets})
        for each in sets:
            seen = [session.scores.sample(each, number) for number in range(len(samples))]
            right = [sample.get("correct_norm", sample["correct"]) for sample in seen]
            found[each] = float(np.mean([sample["nll"] for sample in seen])), float(np.mean(right))
    return found


def main(world: str, tasks: list[str], count: int, sizes: list[int], out: Path) -> None:
    of, rows = WORLDS[world], []
    model = load_folder(str(of.folder), of.dtype, False)
    depth, parts = sweep.layer_count(model), sublayers_of(layers_of(model)[0])
    counts = {
        part: sum(w.numel() for each in some for w in each.module.parameters())
        for part, some in parts.items()
    }
    attention = counts["attention"] / sum(counts.values())
    price = {"layer": 1.0, "attention": attention, "mlp": 1 - attention}
    for task in tasks:
        pool, test = documents(world, task)
        numbers = np.random.default_rng(0).permutation(len(pool.samples))[:count]
        samples = tuple(pool.samples[number] for number in numbers)
        plans = {}
        for kind in ("layer", "both"):
            gone, first = [], None
            for size in range(1, max(sizes) + 1):
                current = frozenset(gone)
                sets = [current, *(current | {unit} for unit in all_units(depth, kind, gone))]
                found = losses(model, samples, sets)
                scores = {
                    unit: found[current | {unit}][0] - found[current][0]
                    for unit in all_units(depth, kind, gone)
                }
                ranked = sorted(scores.items(), key=lambda entry: entry[1])
                first = first or ranked
                request = PlanRequest(size, kind, depth, frozenset(), 0, attention_share=attention)
                gone += [unit for unit, _ in request.lowest(ranked, gone)]
                if size in sizes:
                    plans[f"{kind} iterative", size] = frozenset(gone)
                    plans[f"{kind} one_shot", size] = frozenset(
                        unit for unit, _ in request.lowest(first)
                    )
        judged = losses(
            model, test.samples, list(dict.fromkeys([frozenset[str](), *plans.values()]))
        )
        for (way, size), units in plans.items():
            worth = sum(price[parse_unit(unit)[1]] for unit in units)
            listed = " ".join(sorted(units, key=parse_unit))
            rows.append(
                [task, way, size, round(worth, 2), listed, *judged[units], *judged[frozenset()]]
            )
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    world, tasks, count, sizes, out = sys.argv[1:]
    main(
        world,
        tasks.split(","),
        int(count),
        [int(size) for size in sizes.split(",")],
        Path(out).resolve(),
    )

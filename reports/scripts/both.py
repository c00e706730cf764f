"""Strategy `portfolio` over whole layers, and over halves of layers at the price of their parameters.

`PYTHONPATH=src python reports/scripts/both.py reference addition,facts 250 0,1 1,2,3 OUT.csv`: one of the WORLDS of
portfolio_regret.py, tasks, documents that propose and judge, draws of them, sizes in layers. The rows of a member
without a judged loss have what it proposes from its half of the documents.
"""

import csv
import sys
from itertools import product
from pathlib import Path

import numpy as np
from halves import losses
from portfolio_regret import TOKENS, WORLDS, documents

from lamina.data.calibrations import CalibrationSamples
from lamina.models.load import load_folder
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.units import parse_unit
from lamina.options.selectors import Selector
from lamina.selection import judging
from lamina.selection.sets import SearchRequest

HEAD = "task draw units removed worth gone member judged_loss corrected_loss loss accuracy base_loss base_accuracy"


def main(
    world: str, tasks: list[str], count: int, draws: list[int], sizes: list[int], out: Path
) -> None:
    of, rows = WORLDS[world], []
    model = load_folder(str(of.folder), of.dtype, False)
    parts = sublayers_of(layers_of(model)[0])
    counts = {
        part: sum(w.numel() for each in some for w in each.module.parameters())
        for part, some in parts.items()
    }
    manifest = {"attention_share": {"parameters": counts["attention"] / sum(counts.values())}}
    drawn = {task: documents(world, task) for task in tasks}
    for draw, task in product(draws, tasks):
        pool, test = drawn[task]
        numbers = np.random.default_rng(draw).permutation(len(pool.samples))[:count]
        own, found = (
            CalibrationSamples(tuple(pool.samples[number] for number in numbers), pool.facts),
            {},
        )
        for kind in ("layer", "both"):
            options = Selector.from_options({"strategy": "portfolio", "units": kind, "seed": draw})
            keys = {"model": world, "calibration": task, "selector": kind}
            request = SearchRequest(
                model, {task: own}, options, sizes, keys, tokens=TOKENS, manifest=manifest
            )
            sets, _ = judging.propose_sets(
                request, judging.split_documents({task: own}, options)[0]
            )
            for plan in judging.search_plans(request)[0]:
                told = [plan.choice[name] for name in ("member", "loss", "corrected_loss")]
                worth = round(request.prices.of(plan.units), 2)
                found[kind, plan.removed] = [frozenset(plan.units), worth, *told]
            for size in sizes:
                for member, units in sets[size].items():
                    found[f"{kind}, {member} alone", size] = [
                        units,
                        round(request.prices.of(units), 2),
                        member,
                        "",
                        "",
                    ]
        gone = list(dict.fromkeys([frozenset[str](), *(each[0] for each in found.values())]))
        judged = losses(model, test.samples, gone)
        for (kind, size), (units, worth, *told) in found.items():
            listed = " ".join(sorted(units, key=parse_unit))
            rows.append(
                [task, draw, kind, size, worth, listed, *told, *judged[units], *judged[frozenset()]]
            )
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    world, tasks, count, draws, sizes, out = sys.argv[1:]
    numbers = ([int(number) for number in text.split(",")] for text in (draws, sizes))
    main(world, tasks.split(","), int(count), *numbers, Path(out).resolve())

"""Sets of removed layers measured on many questions: sets that metrics choose from other questions, and drawn ones.

    PYTHONPATH=src python reports/scripts/measure_sets.py RESULTS MODEL CALIBRATION FOLDER --part 0 --parts 2

RESULTS is the folder of a run that has swept MODEL on all questions of CALIBRATION, layer by layer. Half of the
questions choose the sets: each metric takes its least relevant layers at once, from draws of several sizes. As many
sets are drawn from the layers that cost little. All sets are then measured on the other questions, a round of them at
a time. Every round is a file in FOLDER, so that the work can be stopped at any time and goes on with the same command.
Each of several parts takes its own rounds. `set_power.py` says what follows.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lamina.sweep import engine
from lamina.sweep.candidates import CURRENT, Candidate
from metric_power import METRICS, only, sweeps

from lamina import paths, seal
from lamina.data import calibrations
from lamina.errors import LaminaError, explained
from lamina.models.load import load_model
from lamina.relevance.columns import Columns, Context
from lamina.relevance.score import ranking
from lamina.tables import store

SEED = 0
ROUND = 100  # questions
DRAWS = {75: 3, 400: 2}  # by the number of questions that choose
DRAWN = 14  # sets of a size that are drawn
AMONG = 20  # least relevant layers by loss, of which they are drawn


def questions(total: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the questions that choose sets, and of those that judge them."""
    order = np.random.default_rng(SEED).permutation(total)
    return order[: total // 2], order[total // 2 :]


def sets(columns: Columns, context: Context, size: int) -> Iterator[dict[str, Any]]:
    """Sets of `size` layers, with what chose each: a metric, its questions and the number of the draw."""
    ours, _ = questions(columns.n_samples)
    generator = np.random.default_rng([SEED, size])
    for count, draws in DRAWS.items():
        for draw in range(draws):
            part = only(columns, np.random.default_rng([SEED, count, draw]).permutation(ours)[:count])
            for metric in METRICS:
                ranks = ranking(part, metric, context).ranks
                if ranks is not None:
                    least = [unit for unit, rank in zip(columns.units, ranks, strict=True) if rank <= size]
                    yield {"by": metric, "questions": count, "draw": draw, "units": _ordered(least)}
    ranks = ranking(only(columns, ours), "perplexity", context).ranks or []
    cheap = [unit for unit, rank in zip(columns.units, ranks, strict=True) if rank <= AMONG]
    for draw in range(DRAWN):
        units = _ordered(generator.choice(cheap, size, replace=False).tolist())
        yield {"by": "drawn", "questions": 0, "draw": draw, "units": units}


def _ordered(units: list[str]) -> list[str]:
    return sorted(units, key=int)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("model")
    parser.add_argument("calibration")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=Path, help="the folder of its tables, if not results/tables")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 5, 7])
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    args = parser.parse_args()
    with explained():
        keys = {"model": args.model, "calibration": args.calibration}
        swept = [rest for found, *rest in sweeps(args.tables or args.results / "tables") if found == keys]
        if not swept:
            raise LaminaError(f"{args.results} holds no sweep of {args.model} on {args.calibration}. Run it first.")
        columns, context = swept[0]
        chosen = [{"size": size, **each} for size in args.sizes for each in sets(columns, context, size)]
        args.folder.mkdir(parents=True, exist_ok=True)
        (args.folder / "sets.json").write_text(json.dumps({**keys, "score": context.score, "sets": chosen}))
        names = {" ".join(each["units"]) for each in chosen}
        candidates = {CURRENT: Candidate()} | {name: Candidate(frozenset(name.split())) for name in sorted(names)}
        samples = calibrations.read(paths.calibration(args.model, args.calibration, args.results)).samples
        model = load_model(seal.read_json(paths.manifest(args.model, args.results)))
        _, judging = questions(len(samples))
        rounds = np.split(judging, range(ROUND, len(judging), ROUND))[: args.rounds]
        for number in range(args.part, len(rounds), args.parts):
            file = args.folder / f"round={number}.parquet"
            if file.exists():
                continue
            part = [samples[index] for index in rounds[number]]
            with engine.opened(model, part, outputs=False) as session:
                session.measure(range(len(part)), candidates)
            rows = session.scores.rows(candidates)
            kept = ("unit", "sample", "correct", "correct_norm", "nll", "gold_margin_norm")
            store.write(file, pa.Table.from_pylist([{name: row[name] for name in kept} for row in rows]), {})
            print(f"{file}: {len(candidates) - 1} sets, {len(part)} questions", flush=True)

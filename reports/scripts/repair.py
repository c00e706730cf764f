"""Which layers to remove and how to repair what is left: every selector with every repair, on the same documents.

    export PYTHONPATH=src:benchmarks
    python reports/scripts/repair.py --output FOLDER                              the embedded model and its tasks
    python reports/scripts/repair.py --output FOLDER --model MODEL --text FILE    a model on disk and its kind of text
    python reports/scripts/repair.py --output FOLDER --repairs streamline      repairs that train, where asked for
    python reports/scripts/repair.py --output FOLDER --costs                      what the variants there cost to run
    python reports/scripts/repair.py --output FOLDER --summary                    tables in markdown of what is there

One Parquet file per task (or model) and seed, one row per variant, with the answer to every document, so that any two
variants can be compared in pairs. A seed draws the calibration and its folds. What a file holds is not measured again,
so a run may be stopped at any time; the small sizes of all cases of a seed come first.
"""

import argparse
import importlib
import itertools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import repair_costs
import repair_tables
import torch
from lamina.search import block, exact, looped
from lamina.search.evaluator import Evaluator
from lamina.search.looped import Looped, Repairs
from lamina.search.losses import loss_of
from lamina.search.plans import Plan, Request, Step
from lamina.streams.capture import capture
from lamina.sweep import engine
from lamina.sweep.candidates import CURRENT, Candidate
from repair_cases import TASKS, Case, embedded, on_disk
from repair_variants import CLOSED, REPAIRS, TOKENS, Variants, on_general_text

from lamina.config import metrics
from lamina.config.metrics import METRICS
from lamina.config.repairs import Repair
from lamina.data.calibrations import chance_accuracy
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.tables import store

# Without a metric: the case's own, accuracy for questions and loss for text.
SELECTORS: dict[str, dict[str, str]] = {
    "bare": {},
    "cosine": {"metric": "cosine"},
    "angular": {"metric": "angular"},
    "residual": {"metric": "residual"},
    "looped": {"repair": "ghost"},
    "looped_general": {"repair": "ghost_general"},
}


class Selection:
    """Plans of a case by selector, each made once and only as far as is asked for."""

    def __init__(self, case: Case, largest: int, known: Mapping[tuple[str, int], Sequence[str]]) -> None:
        self.case, self.plans = case, {key: list(units) for key, units in known.items()}
        self.every_run: list[Boundary] = [
            (start, start + length) for length in range(1, largest + 1) for start in range(case.depth - length + 1)
        ]
        self._repairs: dict[str, Repairs] = {}

    def plan(self, selector: str, removed: int) -> list[str]:
        """Units that go, in order."""
        if (selector, removed) not in self.plans:
            metric = SELECTORS[selector].get("metric", self.case.metric)
            if metric == "angular":
                units = self._run(removed)
            else:
                before = self.plan(selector, removed - 1) if removed > 1 else []
                units = [*before, self._next(before, metric, self._folds(SELECTORS[selector].get("repair")))]
            self.plans[selector, removed] = units
        return self.plans[selector, removed]

    @cached_property
    def _angles(self) -> dict[tuple[int, int], float]:
        rows = capture(self.case.model, [sample.sequence() for sample in self.case.calibration])
        return {(row["layer"], row["span"]): row["angular_last"] for row in rows if row["span"]}

    def _run(self, removed: int) -> list[str]:
        request = Request(removed, "layer", self.case.depth, frozenset(), self.case.seed)
        empty = Plan("", "", "", removed, "angular", "block", "layer")
        return block.choose(request, Step(angles=self._angles), empty).units

    def _folds(self, repair: str | None) -> Repairs | None:
        """The two folds' patches of every run there can be, in one go: each step of a loop needs some of them."""
        if repair and repair not in self._repairs:
            options, case = Repair.from_options(REPAIRS[repair]), self.case
            alone = [Candidate(frozenset(map(str, range(*boundary)))) for boundary in self.every_run]
            self._repairs[repair] = looped.fitted(case.model, case.sources(options), alone, options, case.seed)
        return self._repairs[repair] if repair else None

    def _next(self, removed: Sequence[str], metric: str, repairs: Repairs | None) -> str:
        """The unit that an iterative selector removes next."""
        case, current = self.case, Candidate(frozenset(removed))
        units = all_units(case.depth, "layer", removed)
        chance = chance_accuracy(case.calibration, case.model.config.vocab_size)
        chosen = None
        pass_ = METRICS[metric].pass_
        if pass_ == "stream":
            rows = engine.sweep(case.model, case.calibration, units, removed, pass_, TOKENS).rows(units)
        elif pass_ != "removal":
            module = importlib.import_module(metrics.MODULES[pass_])
            rows = list(module.rows(case.model, case.calibration, units, removed, pass_, TOKENS))
        else:
            named = {current.without(unit): unit for unit in units}
            with engine.opened(case.model, case.calibration, TOKENS, False) as session:
                measuring = Looped(session, repairs) if repairs else session
                names = named | {current: CURRENT}
                evaluator = Evaluator(measuring, loss_of(metric, "acc_norm"), [current], names)
                chosen = exact.run(evaluator, list(named), {"seed": case.seed}, chance)
            if chosen is not None:
                return named[chosen]
            rows = evaluator.rows([current, *named])
        keys = {"model": case.name, "calibration": case.name, "selector": metric, "removed": len(removed)}
        columns = from_table(store.from_rows("sweeps", rows, **keys))
        ranks = ranking(columns, metric, Context(chance, "acc_norm", len(removed))).ranks
        if ranks is None:
            raise LaminaError(f"{case.name}: the base model is at chance, so nothing can be chosen by {metric}.")
        return columns.units[ranks.index(1)]


class Study:
    """The file of a case, which grows size by size."""

    def __init__(self, case: Case, largest: int, folder: Path) -> None:
        self.case, self.path = case, folder / f"{case.name}-{case.seed}.parquet"
        self.rows: list[dict[str, Any]] = store.read(self.path).to_pylist() if self.path.exists() else []
        known = {(row["selector"], row["removed"]): row["units"] for row in self.rows}
        self.selection = Selection(case, largest, known)
        self.variants = Variants(case, self.selection.every_run)

    def measure(self, removed: int, selectors: Sequence[str], wanted: Sequence[str]) -> None:
        """Add what is missing of one size."""
        case, began = self.case, time.monotonic()
        there = {name for name in REPAIRS if case.general or not on_general_text(name)}
        chosen = [
            name
            for name in selectors
            if SELECTORS[name].get("metric", case.metric) in METRICS and SELECTORS[name].get("repair", "none") in there
        ]
        keys = itertools.product(chosen, [name for name in wanted if name in there]) if removed else [("base", "none")]
        done = {(row["selector"], row["repair"]) for row in self.rows if row["removed"] == removed}
        todo = [key for key in keys if key not in done]
        units = {name: self.selection.plan(name, removed) if removed else [] for name, _ in todo}
        chosen_after = time.monotonic() - began
        self.variants.measure((units[name], repair) for name, repair in todo)
        for name, repair in todo:
            key = {"case": case.name, "seed": case.seed, "selector": name, "repair": repair, "removed": removed}
            self.rows.append({**key, "units": units[name], **self.variants.row(units[name], repair)})
        if todo:
            store.write(self.path, pa.Table.from_pylist(self.rows, schema=repair_tables.SCHEMA))
            spent = {"selection": round(chosen_after), "all": round(time.monotonic() - began)}
            print(json.dumps({"case": case.name, "seed": case.seed, "removed": removed, "seconds": spent}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="folder of the Parquet files")
    parser.add_argument("--summary", action="store_true", help="print tables of what is in the folder")
    parser.add_argument("--costs", action="store_true", help="count what the variants in the folder cost to run")
    parser.add_argument("--model", type=Path, help="folder of a model; by default the embedded one")
    parser.add_argument("--text", type=Path, help="with --model: documents, of which half are for calibration")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(range(7)), help="0 is the unpruned model")
    parser.add_argument("--selectors", nargs="+", default=list(SELECTORS), choices=SELECTORS)
    parser.add_argument("--repairs", nargs="+", choices=REPAIRS, help="by default those that need no training")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    if args.summary:
        print(repair_tables.summary(args.output, args.selectors, args.repairs or REPAIRS, args.seeds))
    else:
        cases = on_disk(args.model, args.text, args.seeds) if args.model else embedded(args.tasks, args.seeds)
        if args.costs:
            repair_costs.count(next(cases), args.output)
            raise SystemExit
        for _, of_seed in itertools.groupby(cases, key=lambda case: case.seed):
            studies = [Study(case, max(args.sizes), args.output) for case in of_seed]
            for removed, study in itertools.product(args.sizes, studies):
                study.measure(removed, args.selectors, args.repairs or CLOSED)

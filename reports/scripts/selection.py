"""Which layers to remove, unrepaired: every metric and strategy on the embedded model, judged on the same documents.

    export PYTHONPATH=src:benchmarks
    python reports/scripts/selection.py --output FOLDER              measure
    python reports/scripts/selection.py --output FOLDER --summary    tables in markdown of what is there

Per task and seed, which draws the calibration, one Parquet file of selections with the answer to every test document,
and one of the sweeps that the metrics are computed from. What a file holds is not measured again, so a run may be
stopped at any time.
"""

import argparse
import importlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import selection_tables
import torch
from cases import TASKS
from lamina.search import block, deepest, evolutionary
from lamina.search import random as drawn
from lamina.search.evaluator import Evaluator
from lamina.search.losses import loss_of
from lamina.search.plans import Plan, Request, Step
from lamina.search.trials import Search, Trials
from lamina.streams.capture import capture
from lamina.sweep import engine
from lamina.sweep.candidates import CURRENT, Candidate
from lamina.sweep.scores import Scores
from repair import Case, embedded

from lamina.config import metrics, selectors
from lamina.config.metrics import METRICS
from lamina.data import calibrations
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.tables import store

TOKENS = 16384
SIZES = (3, 6)  # 25 and 50 % of 12 layers
RANDOM = 10
KEPT, OFFSPRING, GENERATIONS = 3, 16, 10
OBJECTIVES = ("accuracy", "output_kl")
SLOW = ("taylor",)  # to sweep again at every step
Found = tuple[list[str], int | None]
"""Layers in order of removal, and the sets times samples that choosing them took, where sets were evaluated."""
Way = Callable[[], dict[str, dict[int, Found]]]
"""What finds layers, by strategy and size."""


class Chooser:
    """All ways to choose layers of one case."""

    def __init__(self, case: Case) -> None:
        self.case, self.count = case, len(case.calibration)
        self.units = all_units(case.depth, "layer")
        self.calibration = calibrations.build(case.calibration, case.model.config.vocab_size)
        self.chance = float(self.calibration.facts["chance_accuracy"])
        self._swept: dict[tuple[str, bool, tuple[str, ...]], pa.Table] = {}
        self._trials: dict[str, Trials] = {}

    def sweep(self, pass_: str, removed: Sequence[str] = (), outputs: bool = True) -> pa.Table:
        """Rows of table `sweeps` of a pass over what is left."""
        key = (pass_, outputs, tuple(sorted(removed)))
        if key not in self._swept:
            case, units = self.case, all_units(self.case.depth, "layer", removed)
            place: tuple[Any, ...] = (case.model, case.calibration, units, removed, pass_)
            if pass_ in ("removal", "stream"):
                scores = engine.sweep(*place, TOKENS, outputs)  # type: ignore[arg-type]
                rows = scores.rows([CURRENT, *units])
            else:
                rows = importlib.import_module(metrics.MODULES[pass_]).rows(*place, TOKENS)
            keys = {"model": "embedded", "calibration": case.name, "selector": "base", "removed": len(removed)}
            self._swept[key] = store.from_rows("sweeps", rows, **keys)
        return self._swept[key]

    def ranked(self, metric: str, removed: Sequence[str] = ()) -> list[str]:
        """Layers that are left, least relevant first; none where the metric tells nothing."""
        outputs = not removed or METRICS[metric].column.startswith("output")
        columns = from_table(self.sweep(METRICS[metric].pass_, removed, outputs))
        context = Context(self.chance, "acc_norm", len(removed), self.case.seed)
        ranks = ranking(columns, metric, context).ranks
        return [unit for _, unit in sorted(zip(ranks, columns.units, strict=True))] if ranks else []

    def one_shot(self, metric: str) -> dict[int, Found]:
        """By size."""
        order = self.ranked(metric)
        return {size: (order[:size], self._evaluations(metric, 1)) for size in SIZES if order}

    def iterative(self, metric: str) -> dict[int, Found]:
        """By size."""
        removed: list[str] = []
        while len(removed) < max(SIZES) and (order := self.ranked(metric, removed)):
            removed.append(order[0])
        return {size: (removed[:size], self._evaluations(metric, size)) for size in SIZES if len(removed) >= size}

    def _evaluations(self, metric: str, steps: int) -> int | None:
        removal = METRICS[metric].pass_ == "removal"
        return sum(self.case.depth - step for step in range(steps)) * self.count if removal else None

    def searched(self, metric: str) -> dict[str, dict[int, Found]]:
        """`evolutionary`, and by accuracy the best of all sets of the smaller size."""
        with engine.opened(self.case.model, self.case.calibration, TOKENS, metric.startswith("output")) as session:

            def prepare(_: Sequence[Candidate]) -> None:
                session.scores = Scores(self.case.calibration)

            trials = Trials(Evaluator(session, loss_of(metric, "acc_norm")), self.count, prepare=prepare)
            lengths = np.array([len(sample.sequence()) for sample in self.case.calibration])

            def search() -> Search:
                return Search("", trials, np.arange(self.count), lengths)

            found: dict[str, dict[int, Found]] = {"evolutionary": {}}
            for size in SIZES:
                evolving, told = search(), selectors.Selector.from_options(self._evolution(metric))
                end = evolutionary.find(evolving, self.units, [size], told)[size]
                found["evolutionary"][size] = _units(end), sum(row["n_new"] for row in evolving.rows)
            if metric == "accuracy":
                size, every = min(SIZES), search()
                sets = [Candidate(frozenset(units)) for units in itertools.combinations(self.units, size)]
                found["exhaustive"] = {size: (_units(every.best(sets, 1, 1)[0]), len(sets) * self.count)}
        return found

    def _evolution(self, metric: str) -> dict[str, Any]:
        tokens = sum(len(sample.sequence()) for sample in self.case.calibration)
        stages = [[KEPT, tokens // 4], [1, tokens]]
        told = {"strategy": "evolutionary", "metric": metric, "offspring": OFFSPRING, "stages": stages}
        return told | {"generations": GENERATIONS, "seed": self.case.seed}

    @cached_property
    def _angles(self) -> dict[tuple[int, int], float]:
        rows = capture(self.case.model, [sample.sequence() for sample in self.case.calibration])
        return {(row["layer"], row["span"]): row["angular_last"] for row in rows if row["span"]}

    def unranked(self, strategy: Any, seed: int) -> dict[int, Found]:
        """By size: strategies that need no ranking of single layers."""
        found = {}
        for size in SIZES:
            request = Request(size, "layer", self.case.depth, frozenset(), seed)
            empty = Plan("", "", "", size, None, "", "layer")
            angles = self._angles if strategy is block else {}
            found[size] = strategy.choose(request, Step(angles=angles), empty).units, None
        return found


def _units(candidate: Candidate) -> list[str]:
    return sorted(candidate.removed, key=int)


class Study:
    """The files of a case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.path = case, folder / f"{case.name}-{case.seed}.parquet"
        self.rows: list[dict[str, Any]] = store.read(self.path).to_pylist() if self.path.exists() else []
        self.chooser = Chooser(case)
        self._right: dict[frozenset[str], list[bool]] = {frozenset(row["units"]): row["correct"] for row in self.rows}

    def measure(self, part: str) -> None:
        """Add what is missing of one part of the ways."""
        began, chooser = time.monotonic(), self.chooser
        if not (sweeps := self.path.with_suffix(".sweeps")).exists():
            parts = [chooser.sweep(pass_) for pass_ in ("removal", "fit", "gradient")]
            measured = [part.filter(pc.not_equal(part["unit"], CURRENT)) for part in parts[1:]]
            store.write(sweeps, pa.concat_tables([parts[0], *measured]), {"chance": str(chooser.chance)})
        for metric, strategy, way in self._ways(part):
            if not any((row["metric"], row["strategy"]) == (metric, strategy) for row in self.rows):
                self._add(metric, way())
        print(
            json.dumps({"case": self.path.stem, "part": part, "seconds": round(time.monotonic() - began)}), flush=True
        )

    def _ways(self, part: str) -> Iterator[tuple[str, str, Way]]:
        """Metric, strategy, and what chooses."""
        chooser = self.chooser
        ranking_metrics = [name for name in METRICS if name != "random"]
        if part == "quick":
            yield "", "base", lambda: {"base": {0: ([], None)}}
            for unit in chooser.units:
                yield "", f"alone_{unit}", lambda unit=unit: {f"alone_{unit}": {1: ([unit], None)}}
            yield "angular", "block", lambda: {"block": chooser.unranked(block, 0)}
            yield "", "deepest", lambda: {"deepest": chooser.unranked(deepest, 0)}
            for seed in range(RANDOM):
                yield "", f"random_{seed}", lambda seed=seed: {f"random_{seed}": chooser.unranked(drawn, seed)}
            for metric in ranking_metrics:
                yield metric, "one_shot", lambda metric=metric: {"one_shot": chooser.one_shot(metric)}
        if part in ("quick", "slow"):
            for metric in (name for name in ranking_metrics if (name in SLOW) == (part == "slow")):
                yield metric, "iterative", lambda metric=metric: {"iterative": chooser.iterative(metric)}
        if part in OBJECTIVES:
            yield part, "evolutionary", lambda: chooser.searched(part)

    def _add(self, metric: str, found: dict[str, dict[int, Found]]) -> None:
        ends = [(strategy, *end) for strategy, of_size in found.items() for end in of_size.values()]
        new = {Candidate(frozenset(units)) for _, units, _ in ends if frozenset(units) not in self._right}
        questions = self.case.questions
        if new:
            with engine.opened(self.case.model, questions, TOKENS, False) as session:
                session.measure(range(len(questions)), {one: one for one in new})
            scores = session.scores
            places = [scores.index[one] for one in new]
            right = np.array([scores.correct(places, number, True) for number in range(len(questions))]).T
            self._right |= {one.removed: mine.tolist() for one, mine in zip(new, right.astype(bool), strict=True)}
        for strategy, units, evaluations in ends:
            key = {"case": self.case.name, "seed": self.case.seed, "metric": metric, "strategy": strategy}
            key |= {"removed": len(units), "units": units, "evaluations": evaluations}
            self.rows.append(key | {"correct": self._right[frozenset(units)]})
        store.write(self.path, pa.Table.from_pylist(self.rows, schema=selection_tables.SCHEMA))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="folder of the Parquet files")
    parser.add_argument("--summary", action="store_true", help="print tables of what is in the folder")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    if args.summary:
        print(selection_tables.summary(args.output))
    else:
        for _, of_seed in itertools.groupby(embedded(args.tasks, args.seeds), key=lambda case: case.seed):
            studies = [Study(case, args.output) for case in of_seed]
            for part, study in itertools.product(("quick", "accuracy", "slow", "output_kl"), studies):
                study.measure(part)

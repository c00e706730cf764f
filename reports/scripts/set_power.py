"""What predicts the cost of a set of removed layers, and how much the choice of a metric is worth, by measured sets.

    PYTHONPATH=src python reports/scripts/set_power.py RESULTS FOLDER [--tables TABLES]

FOLDER is what `measure_sets.py` wrote. Three tables as CSV, one after the other:

- `chosen`: points of accuracy that the sets of a metric cost, from so many questions, and how much more than those of
  `accuracy` from most questions: means over draws, 95 % intervals of 2,000 bootstraps over the questions that judge.
- `predictors`: Spearman's correlation, over all sets of a size, of a score with what a set truly costs. `sum` adds up
  what a metric says of the single layers, from questions that choose; `own` measures the set itself on n of the
  questions that judge, and takes the rest for the truth. Means over draws, and 95 % of them.
- `winner`: the set of a size with the best own score from n questions: what it seems to cost, and what it costs on the
  rest.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lamina.sweep.candidates import CURRENT
from measure_sets import DRAWS, SEED, questions
from metric_power import METRICS, averaging, correlations, only, sweeps

from lamina.errors import LaminaError, explained
from lamina.relevance.columns import Columns, Context
from lamina.relevance.score import ranking, was_measured
from lamina.tables import store

BOOTSTRAPS = 2000
DRAWN = 200
REFERENCE = ("accuracy", max(DRAWS))
OWN = {"accuracy": "right", "perplexity": "nll", "margin": "gold_margin_norm"}


class Measured:
    """The sets' numbers on the questions that judge: (sets + 1, questions) by name, the unpruned model first."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "sets.json").read_text())
        files = sorted(folder.glob("round=*.parquet"))
        if not files:
            raise LaminaError(f"{folder} holds no round. Run measure_sets.py first.")
        table = pa.concat_tables([store.read(file).replace_schema_metadata(None) for file in files])
        self.sets: list[dict[str, Any]] = told["sets"]
        names = [CURRENT, *sorted(set(table["unit"].to_pylist()) - {CURRENT})]
        place = {name: number for number, name in enumerate(names)}
        samples, column = np.unique(table["sample"].to_numpy(), return_inverse=True)
        row = np.array([place[unit] for unit in table["unit"].to_pylist()])
        self.values: dict[str, np.ndarray] = {}
        right = "correct_norm" if told["score"] == "acc_norm" else "correct"
        for name, of in (("right", right), ("nll", "nll"), ("gold_margin_norm", "gold_margin_norm")):
            values = np.full((len(names), len(samples)), np.nan)
            values[row, column] = table[of].to_numpy(zero_copy_only=False).astype(float)
            self.values[name] = values
        self.lost = self.values["right"][:1] - self.values["right"]
        self.row = {name: number for name, number in place.items() if name != CURRENT}
        self.base = float(self.values["right"][0].mean())

    @property
    def count(self) -> int:
        """Questions."""
        return int(self.lost.shape[1])

    def of_size(self, size: int) -> list[str]:
        """The different sets of a size."""
        return sorted({" ".join(each["units"]) for each in self.sets if each["size"] == size})


def chosen(measured: Measured) -> Iterator[dict[str, Any]]:
    """Rows of table `chosen`."""
    generator = np.random.default_rng(SEED)
    weights = generator.multinomial(measured.count, np.full(measured.count, 1 / measured.count), BOOTSTRAPS)
    weights = weights / measured.count
    for size in sorted({each["size"] for each in measured.sets}):
        means: dict[tuple[str, int], np.ndarray] = {}
        counts: dict[tuple[str, int], int] = {}
        for each in (each for each in measured.sets if each["size"] == size):
            key = (each["by"], each["questions"])
            lost = measured.lost[measured.row[" ".join(each["units"])]]
            means[key] = means.get(key, 0.0) + lost
            counts[key] = counts.get(key, 0) + 1
        means = {key: total / counts[key] for key, total in means.items()}
        for (by, asked), lost in means.items():
            less = lost - means[REFERENCE]
            row = {"size": size, "by": by, "questions": asked, "sets": counts[by, asked], "n": measured.count}
            row |= _interval("lost", lost, weights) | _interval("more_than_reference", less, weights)
            yield row | {"unpruned": measured.base}


def _interval(name: str, values: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(weights @ values, [2.5, 97.5])
    return {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def predictors(
    measured: Measured, columns: Columns, context: Context, sizes: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Rows of table `predictors`."""
    ours, _ = questions(columns.n_samples)
    generator = np.random.default_rng(SEED)
    said = {}
    for count in DRAWS:
        orders = [generator.permutation(ours)[:count] for _ in range(DRAWN)]
        for metric in (metric for metric in METRICS if was_measured(columns, metric, context)):
            draws = np.concatenate([ranking(only(columns, order), metric, context).draws for order in orders])
            # A draw in which the metric is undefined says nothing.
            said[count, metric] = draws[np.isfinite(draws).all(axis=1)]
    for size in sizes:
        sets = measured.of_size(size)
        rows = [measured.row[name] for name in sets]
        inside = np.array([[unit in name.split() for unit in columns.units] for name in sets], dtype=float)
        for count in DRAWS:
            for metric in (metric for metric in METRICS if (count, metric) in said and len(said[count, metric])):
                scores = said[count, metric] @ inside.T
                truth = np.tile(measured.lost[rows].mean(axis=1), (len(scores), 1))
                yield {"size": size, "score": f"sum of {metric}", "questions": count} | _spread(scores, truth)
            if 2 * count > measured.count:
                continue
            halves = np.array([generator.permutation(measured.count) for _ in range(DRAWN)])
            few, rest = (averaging(part, measured.count) for part in np.split(halves, [count], axis=1))
            truth = rest @ measured.lost[rows].T
            for metric, column in OWN.items():
                sign = 1.0 if column == "nll" else -1.0
                scores = sign * (few @ measured.values[column][rows].T)
                yield {"size": size, "score": f"own {metric}", "questions": count} | _spread(scores, truth)


def winner(measured: Measured, sizes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Rows of table `winner`."""
    generator = np.random.default_rng(SEED)
    for size in sizes:
        rows = [measured.row[name] for name in measured.of_size(size)]
        for count in DRAWS:
            if 2 * count > measured.count:
                continue
            orders = np.array([generator.permutation(measured.count) for _ in range(DRAWN)])
            few, rest = (averaging(part, measured.count) for part in np.split(orders, [count], axis=1))
            seems, costs = few @ measured.lost[rows].T, rest @ measured.lost[rows].T
            for metric, column in OWN.items():
                sign = 1.0 if column == "nll" else -1.0
                best = (sign * (few @ measured.values[column][rows].T)).argmin(axis=1)[:, None]
                row = {"size": size, "by": f"own {metric}", "questions": count, "sets": len(rows)}
                row |= {
                    name: float(np.take_along_axis(v, best, axis=1).mean())
                    for name, v in (("seems", seems), ("costs", costs))
                }
                yield row | {"best_possible": float(costs.min(axis=1).mean())}


def _spread(scores: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    found = correlations(scores, truth)
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return {
        "sets": scores.shape[1],
        "draws": len(scores),
        "spearman": float(np.nanmean(found)),
        "low": float(low),
        "high": float(high),
    }


def _write(name: str, rows: Iterable[dict[str, Any]]) -> None:
    writer = None
    for row in rows:
        told = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()}
        told = {"table": name, **told}
        if writer is None:
            writer = csv.DictWriter(sys.stdout, told)
            writer.writeheader()
        writer.writerow(told)
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=Path, help="the folder of its tables, if not results/tables")
    args = parser.parse_args()
    with explained():
        measured = Measured(args.folder)
        told = json.loads((args.folder / "sets.json").read_text())
        keys = {name: told[name] for name in ("model", "calibration")}
        columns, context = next(
            rest for found, *rest in sweeps(args.tables or args.results / "tables") if found == keys
        )
        sizes = sorted({each["size"] for each in measured.sets})
        _write("chosen", chosen(measured))
        _write("predictors", predictors(measured, columns, context, sizes))
        _write("winner", winner(measured, sizes))

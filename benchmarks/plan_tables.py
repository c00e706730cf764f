"""What the variants of a study are worth, each beside the unpruned model and beside the same plan without a repair.

    PYTHONPATH=src python benchmarks/plan_tables.py RESULTS [MORE …] [--metric acc_norm] [--pooled]

RESULTS is the folder of a finished run. Further ones add variants measured on the same test documents. CSV with a row
for each task, plan, recovery and healing: its accuracy, the unpruned model's less that, that less the accuracy of the
same plan bare, and the mean loss of a document of each text. Intervals are of 95 %, from 1,000 bootstraps over the
documents, which are the same ones for both sides of a difference. Plans of replicates (`random`) are rows of their own.

`--pooled` has means over plans and tasks instead: what each recovery regains, and what each selector loses, bare.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina.errors import LaminaError, explained
from lamina.relevance.statistics import bootstrap_weights, interval
from lamina.tables import store

KEY = ("calibration", "selector", "removed", "recovery", "healing")
Variant = tuple[Any, ...]


class Values:
    """Values of variants by document: (documents,), by task and variant."""

    def __init__(self, folders: Sequence[Path], metric: str) -> None:
        self.by_task: dict[str, dict[Variant, np.ndarray]] = {}
        self.texts: dict[str, dict[Variant, np.ndarray]] = {}
        for folder in folders:
            table = store.read(folder / "tables" / "benchmark_samples.parquet")
            grouped: dict[tuple[str, str, Variant], list[tuple[int, float]]] = {}
            for row in table.to_pylist():
                if row["metric"] in (metric, "nll"):
                    key = (row["metric"], row["task"], tuple(row[name] for name in KEY))
                    grouped.setdefault(key, []).append((row["sample"], row["value"]))
            for (measured, task, variant), pairs in grouped.items():
                of = self.texts if measured == "nll" else self.by_task
                of.setdefault(task, {})[variant] = np.array([value for _, value in sorted(pairs)])
        if not self.by_task:
            raise LaminaError(f"no variant has {metric}. Write the --metric that the tasks measure.")


def rows(values: Values) -> Iterator[dict[str, Any]]:
    """The rows of the table, task by task."""
    for task, variants in sorted(values.by_task.items()):
        base = next(each for variant, each in variants.items() if variant[2] == 0)
        for variant, right in sorted(variants.items(), key=lambda pair: str(pair[0])):
            weights = bootstrap_weights(len(right), 0)
            row: dict[str, Any] = {"task": task, **dict(zip(KEY, variant, strict=True)), "n": len(right)}
            row |= _told("accuracy", weights @ right, len(right)) | _told("lost", weights @ (base - right), len(right))
            bare = variants.get((*variant[:3], "none", "none"))
            if bare is not None and variant[3:] != ("none", "none"):
                row |= _told("regained", weights @ (right - bare), len(right))
            for text, of in sorted(values.texts.items()):
                if variant in of:
                    losses = of[variant]
                    row |= _told(f"nll_{text}", bootstrap_weights(len(losses), 0) @ losses, len(losses))
            yield row


def pooled(values: Values) -> Iterator[dict[str, Any]]:
    """What each recovery regains over all plans of a size, and what each selector loses; documents drawn by task."""
    bare = ("none", "none")
    regained: dict[tuple[int, str], dict[str, list[np.ndarray]]] = {}
    lost: dict[tuple[int, str], dict[str, list[np.ndarray]]] = {}
    for task, variants in sorted(values.by_task.items()):
        base = next(each for variant, each in variants.items() if variant[2] == 0)
        for variant, right in variants.items():
            plan = variants.get((*variant[:3], *bare))
            if variant[3:] == bare and variant[2]:
                lost.setdefault((variant[2], variant[1]), {}).setdefault(task, []).append(base - right)
            elif plan is not None and variant[4] == "none" and variant[2]:
                regained.setdefault((variant[2], variant[3]), {}).setdefault(task, []).append(right - plan)
    for what, of in (("recovery regains", regained), ("selector loses", lost)):
        for (removed, name), by_task in sorted(of.items()):
            draws = [
                bootstrap_weights(len(gaps[0]), number) @ np.mean(gaps, axis=0)
                for number, gaps in enumerate(by_task.values())
            ]
            count = sum(len(gaps[0]) for gaps in by_task.values())
            row = {"what": what, "name": name, "removed": removed, "tasks": len(by_task), "n": count}
            yield row | {"plans": sum(map(len, by_task.values()))} | _told("points", np.mean(draws, axis=0), count)


def _told(name: str, draws: np.ndarray, count: int) -> dict[str, float]:
    low, high = interval(draws[1:], count)
    return {name: round(float(draws[0]), 4), f"{name}_low": round(float(low), 4), f"{name}_high": round(float(high), 4)}


if __name__ == "__main__":
    with explained():
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("results", nargs="+", type=Path)
        parser.add_argument("--metric", default="acc_norm")
        parser.add_argument("--pooled", action="store_true")
        args = parser.parse_args()
        made = list((pooled if args.pooled else rows)(Values(args.results, args.metric)))
        names = list(dict.fromkeys(name for row in made for name in row))
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)

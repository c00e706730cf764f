"""How well each metric ranks layers and picks one with n samples, from one sweep of the unpruned model.

    PYTHONPATH=src python reports/scripts/metric_power.py results/tables --samples 50 100 200

Truth is the accuracy that each layer costs on the samples that a draw leaves. Of every draw of n samples: Spearman's
correlation of the scores with the truth; the same corrected for the noise of both, by the agreement of disjoint draws
of n and of halves of the rest (Spearman-Brown); what the least relevant layer truly costs more than the cheapest one;
the share of the truly cheapest quarter among as many least relevant ones, and what these truly cost more, each on
average. Means over draws, with 95 % of them, as CSV.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from lamina.relevance.accuracy import hits
from pyarrow import dataset
from scipy.stats import rankdata

from lamina.errors import LaminaError, explained
from lamina.relevance.columns import Columns, Context, from_table
from lamina.relevance.score import ranking, was_measured
from lamina.tables import store

METRICS = ("accuracy", "margin", "perplexity", "output_kl", "cosine")


def power(
    columns: Columns, context: Context, metrics: Sequence[str], sizes: Sequence[int], draws: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """One row per metric and number of samples; sizes that leave less than half of the samples are left out."""
    total, generator = columns.n_samples, np.random.default_rng(seed)
    right = np.nan_to_num(hits(columns, context.score))
    lost = right[:1] - right[1:]  # (units, samples)
    for size in (size for size in sizes if 2 * size <= total // 2):
        orders = np.array([generator.permutation(total) for _ in range(draws)])
        # Two disjoint draws of `size`, and the rest in two halves.
        middle = 2 * size + (total - 2 * size) // 2
        parts = np.split(orders, [size, 2 * size, middle], axis=1)
        half, rest = (averaging(part, total) for part in parts[2:])
        truth = averaging(np.concatenate(parts[2:], axis=1), total) @ lost.T
        halves = correlations(half @ lost.T, rest @ lost.T)
        reliable = _mean(halves) * 2 / (1 + _mean(halves))
        for metric in metrics:
            if not was_measured(columns, metric, context):
                continue
            found = [
                np.concatenate([ranking(only(columns, numbers), metric, context).draws for numbers in part])
                for part in parts[:2]
            ]
            kept = np.isfinite(np.stack(found)).all(axis=(0, 2))
            if not kept.any():
                continue
            # The deepest first, which goes among equals.
            scores, again, true = (each[kept][:, ::-1] for each in (*found, truth))
            spearman, itself = correlations(scores, true), _mean(correlations(scores, again))
            noise = np.sqrt(max(itself, 0) * max(reliable, 0))
            picked = np.take_along_axis(true, scores.argmin(axis=1)[:, None], axis=1)[:, 0]
            quarter = max(1, round(true.shape[1] / 4))
            lowest, best = (np.argsort(each, axis=1, kind="stable")[:, :quarter] for each in (scores, true))
            shared = [len(set(a) & set(b)) / quarter for a, b in zip(lowest.tolist(), best.tolist(), strict=True)]
            means = [np.take_along_axis(true, each, axis=1).mean(axis=1) for each in (lowest, best)]
            row = {"metric": metric, "samples": size, "draws": int(kept.sum()), "units": true.shape[1]}
            row |= {"agrees_with_itself": itself, "truth_reliability": reliable}
            for name, values in (
                ("spearman", spearman),
                ("regret", picked - true.min(axis=1)),
                ("lowest_quarter", np.array(shared)),
                ("quarter_regret", means[0] - means[1]),
            ):
                low, high = np.nanpercentile(values, [2.5, 97.5])
                row |= {name: _mean(values), f"{name}_low": low, f"{name}_high": high}
            yield row | {"disattenuated": min(_mean(spearman) / noise, 1.0) if noise > 0 else None}


def only(columns: Columns, numbers: np.ndarray) -> Columns:
    """The sweep of these questions alone: some metrics fit a number on all that they are given."""
    return replace(columns, values={name: values[:, numbers] for name, values in columns.values.items()})


def averaging(numbers: np.ndarray, total: int) -> np.ndarray:
    """Rows that average the samples with these numbers, (draws, samples)."""
    weights = np.zeros((len(numbers), total))
    np.put_along_axis(weights, numbers, 1 / numbers.shape[1], axis=1)
    return weights


def correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Row by row; NaN where a row has one value only."""
    ranks = [rankdata(each.round(12), axis=1) for each in (one, other)]
    ranks = [each - each.mean(axis=1, keepdims=True) for each in ranks]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (ranks[0] * ranks[1]).sum(axis=1) / np.sqrt((ranks[0] ** 2).sum(axis=1) * (ranks[1] ** 2).sum(axis=1))
    return np.asarray(found)


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def sweeps(tables: Path) -> Iterator[tuple[dict[str, Any], Columns, Context]]:
    """The removal sweeps of whole layers of unpruned models."""
    data = dataset.dataset(tables / "sweeps.parquet")
    for row in store.read(tables / "calibrations.parquet").to_pylist():
        if row["kind"] != "choices":
            continue
        mine = (pc.field("model") == row["model"]) & (pc.field("calibration") == row["calibration"])
        base = mine & (pc.field("selector") == "base") & (pc.field("removed") == 0) & pc.field("correct").is_valid()
        found = data.to_table(filter=base & pc.match_substring_regex(pc.field("unit"), r"^(\d+|none)$"))
        if found.num_rows:
            keys = {name: row[name] for name in ("model", "calibration")}
            yield keys, from_table(found), Context(row["chance_accuracy"], row.get("choice_score") or "acc_norm")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="a run's results/tables")
    parser.add_argument("--samples", type=int, nargs="+", default=[50, 75, 100, 200, 400])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--metrics", nargs="+", default=METRICS)
    args = parser.parse_args()
    with explained():
        written = None
        for keys, columns, context in sweeps(args.tables):
            for row in power(columns, context, args.metrics, args.samples, args.draws):
                told = {name: f"{v:.4f}" if isinstance(v, float) else v for name, v in (keys | row).items()}
                if written is None:
                    written = csv.DictWriter(sys.stdout, told)
                    written.writeheader()
                written.writerow(told)
        if written is None:
            raise LaminaError(f"{args.tables} holds no sweep of choices with enough samples for {args.samples}.")

"""What the rows of `selection.py` say: how metrics agree, mean accuracies, and paired differences with intervals."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from repair_tables import Difference, difference

from lamina.config.metrics import METRICS
from lamina.relevance.columns import Context
from lamina.relevance.metric_agreement import Agreement, compare, comparisons, draws_of
from lamina.relevance.statistics import bootstrap_weights
from lamina.tables import store

SCHEMA = pa.schema(
    [
        ("case", pa.string()),
        ("seed", pa.int64()),
        ("metric", pa.string()),
        ("strategy", pa.string()),
        ("removed", pa.int64()),
        ("units", pa.list_(pa.string())),
        ("evaluations", pa.int64()),
        ("correct", pa.list_(pa.bool_())),  # by test document
    ]
)
SIZES = {3: "25 %", 6: "50 %"}
Way = tuple[str, str]
Cells = dict[tuple[str, int], np.ndarray]


class Results:
    """All files of a folder."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.parquet"))
        self.rows = [row for path in files for row in store.read(path).to_pylist()]
        self.sweeps = {path.stem: store.read(path) for path in sorted(folder.glob("*.sweeps"))}

    def cells(self, way: Way, removed: int) -> Cells:
        """Whether each test document is answered, by case and seed; of random draws the mean."""
        metric, strategy = way
        found: dict[tuple[str, int], list[Any]] = {}
        for row in self.rows:
            if (row["metric"], _strategy(row), row["removed"]) == (metric, strategy, removed):
                found.setdefault((row["case"], row["seed"]), []).append(row["correct"])
        return {cell: np.mean(np.array(answers, dtype=float), axis=0) for cell, answers in found.items()}

    def ways(self) -> list[Way]:
        """Every metric and strategy, in the order in which they were measured."""
        named = ((row["metric"], _strategy(row)) for row in self.rows)
        return [way for way in dict.fromkeys(named) if way[1] not in ("base", "alone")]


def _strategy(row: dict[str, Any]) -> str:
    """Without the number of a random draw or of a layer that is removed alone."""
    return re.sub(r"_\d+$", "", row["strategy"])


def summary(folder: Path) -> str:
    """All tables in markdown."""
    results = Results(folder)
    return "\n\n".join([_agreements(results), _accuracies(results), _differences(results)])


def _agreements(results: Results) -> str:
    """Each metric against accuracy on the same samples, and against what its removals cost on the test documents."""
    rows = []
    for metric in (name for name in METRICS if name != "random"):
        inside = _agreement(results, metric)
        if not inside:
            continue
        outside = _against_test(results, metric)
        ratio = inside.variance_ratio and metric != "accuracy"
        rows.append(
            [
                f"`{metric}`",
                str(inside.n_tasks),
                *(_interval(value) for value in (inside.pearson, inside.spearman, inside.misranked, inside.badly)),
                *((_interval(inside.variance_ratio), f"{inside.p_value:.2g}") if ratio else ("–", "–")),  # type: ignore[arg-type]
                *(_interval(value) for value in (outside.pearson, outside.spearman)),
            ]
        )
    head = "metric, tasks, Pearson, Spearman, misranked, badly, variance ratio, Wilcoxon p"
    return _table([*head.split(", "), "Pearson, test drop", "Spearman, test drop"], rows)


def _agreement(results: Results, metric: str) -> Agreement | None:
    tables, calibrations = [], []
    for name, table in results.sweeps.items():
        case, seed = name.rsplit("-", 1)
        if seed == "0":
            tables.append(table)
            chance = float((table.schema.metadata or {})[b"lamina.chance"])
            samples = len(set(table["sample"].to_pylist()))
            told = {"model": "embedded", "calibration": case, "n_samples": samples, "chance_accuracy": chance}
            calibrations.append(told | {"choice_score": "acc_norm"})
    found = list(comparisons(calibrations, pa.concat_tables(tables), "accuracy", [metric]))
    return found[0][-1] if found else None


def _against_test(results: Results, metric: str) -> Agreement:
    """The metric on the calibration against the accuracy that is lost on the test documents."""
    scores, drops, least = [], [], []
    for name, table in results.sweeps.items():
        case, seed = name.rsplit("-", 1)
        chance = float((table.schema.metadata or {})[b"lamina.chance"])
        count = len(set(table["sample"].to_pylist()))
        alone = {
            row["strategy"]: row["correct"] for row in results.rows if (row["case"], row["seed"]) == (case, int(seed))
        }
        found = draws_of(table, metric, Context(chance), count)
        if found is None or seed != "0":
            continue
        lost = np.array([np.array(alone["base"], float) - alone[f"alone_{unit}"] for unit in found[0]])
        scores.append(found[1])
        least.append(min(count, lost.shape[1]))
        drops.append(bootstrap_weights(lost.shape[1], 1) @ lost.T)
    return compare(scores, drops, min(least))


def _accuracies(results: Results) -> str:
    # Means compare over the same tasks: those that every quick way has been measured on.
    complete = set(results.cells(("magnitude", "iterative"), min(SIZES)))
    base = [answers.mean() for cell, answers in results.cells(("", "base"), 0).items() if cell in complete]
    rows = []
    for way in results.ways():
        cells = [
            {cell: found for cell, found in results.cells(way, size).items() if cell in complete} for size in SIZES
        ]
        counted = [
            np.mean([row["evaluations"] for row in results.rows if _is(row, way, size) and row["evaluations"]] or [0])
            for size in SIZES
        ]
        told = [_mean(found) for found in cells]
        if way[1] == "random":
            told = [f"{text} ({_spread(results, size, complete)})" for text, size in zip(told, SIZES, strict=True)]
        told += [f"{number:,.0f}" if number else "–" for number in counted]
        rows.append([f"`{way[0]}`" if way[0] else "", way[1], str(max(map(len, cells))), *told])
    head = ["metric", "strategy", "tasks", *SIZES.values(), *(f"evaluations, {size}" for size in SIZES.values())]
    tasks = ", ".join(sorted({case for case, _ in complete}))
    return f"{tasks}; unpruned: {np.mean(base):.3f}.\n\n{_table(head, rows)}"


def _is(row: dict[str, Any], way: Way, removed: int) -> bool:
    return (row["metric"], row["strategy"], row["removed"]) == (*way, removed)


def _mean(cells: Cells) -> str:
    return f"{np.mean([answers.mean() for answers in cells.values()]):.3f}" if cells else "–"


def _spread(results: Results, removed: int, cells: set[tuple[str, int]]) -> str:
    """Least and largest mean over tasks of the random draws."""
    draws: dict[str, list[float]] = {}
    for row in results.rows:
        if _strategy(row) == "random" and row["removed"] == removed and (row["case"], row["seed"]) in cells:
            draws.setdefault(row["strategy"], []).append(np.mean(row["correct"]))
    means = [np.mean(each) for each in draws.values()]
    return f"{min(means):.3f} … {max(means):.3f} of {len(means)} draws"


def _differences(results: Results) -> str:
    """Accuracy against every other metric, iterative against one-shot, searches against greedy, and baselines."""
    greedy: Way = ("accuracy", "iterative")
    there, pairs = results.ways(), []
    pairs += [(greedy, (metric, "iterative")) for metric in METRICS if metric != "accuracy"]
    pairs += [((metric, "iterative"), (metric, "one_shot")) for metric in METRICS]
    for metric in ("accuracy", "output_kl"):
        pairs += [((metric, "evolutionary"), (metric, "iterative"))]
    pairs += [(("accuracy", "exhaustive"), greedy)]
    pairs += [(greedy, other) for other in (("angular", "block"), ("", "deepest"), ("", "random"))]
    rows = []
    for one, other in pairs:
        if one in there and other in there:
            found = [difference(results.cells(one, size), results.cells(other, size)) for size in SIZES]
            rows.append([f"{_named(one)} less {_named(other)}", *map(_told, found)])
    return _table(["", *SIZES.values()], rows)


def _named(way: Way) -> str:
    return f"`{way[0]}` {way[1]}" if way[0] else way[1]


def _told(found: Difference | None) -> str:
    """With the interval over documents, and over tasks where there are more than two; their number where few."""
    if found is None:
        return "–"
    documents, cases = (f"{low:+.3f} … {high:+.3f}" for low, high in (found.documents, found.cases))
    return f"{found.mean:+.3f} ({documents}{f'; {cases}' if found.n_cases > 2 else ''}) [{found.n_cells}]"


def _interval(value: Sequence[float] | None) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f} … {value[2]:.2f})" if value else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])

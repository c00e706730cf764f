"""What the rows of `repair.py` say: means over tasks, and paired differences between variants with their intervals."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import t as student

from lamina.models.surgery import removed_layers, runs
from lamina.relevance.statistics import bootstrap_weights, interval
from lamina.tables import store

SCHEMA = pa.schema(
    [
        ("case", pa.string()),
        ("seed", pa.int64()),
        ("selector", pa.string()),
        ("repair", pa.string()),
        ("removed", pa.int64()),
        ("units", pa.list_(pa.string())),
        ("refused", pa.string()),
        ("accuracy", pa.float64()),
        ("generated", pa.float64()),
        ("perplexity", pa.float64()),
        # By document: right answers, right answers that greedy decoding writes, loss and number of scored tokens.
        ("correct", pa.list_(pa.bool_())),
        ("written", pa.list_(pa.bool_())),
        ("nll", pa.list_(pa.float64())),
        ("tokens", pa.list_(pa.int64())),
    ]
)
PUBLISHED = (
    ("bare", "cosine", "angular"),
    ("ghost", "linearpatch", "linearpatch_diag", "replaceme", "prune_comp", "streamline", "none+distill"),
)
# What lamina's best is compared with the best published of, by what may be trained.
TRAINING = ("nothing trained", "at most one layer per run trained", "healed or not")
# Repairs compared at equal selection, and selections at equal repair.
REPAIRS = (
    ("ghost", "replaceme"),
    ("ghost", "linearpatch"),
    ("ghost_general", "replaceme_general"),
    ("ghost_general", "linearpatch_general"),
    ("ghost_refit", "ghost"),
    ("streamline", "ghost"),
    ("streamline_general", "streamline"),
    ("streamline_general", "ghost_general"),
    ("none+distill", "none"),
    ("none+distill", "ghost_general"),
    ("ghost_general+distill", "ghost_general"),
    ("ghost_general+distill", "none+distill"),
    ("ghost_general+distill", "streamline_general"),
    ("ghost+distill", "ghost"),
    ("ghost+distill", "ghost_general+distill"),
    ("streamline_general+distill", "streamline_general"),
    ("streamline_general+distill", "ghost_general+distill"),
)
SELECTIONS = (
    ("looped", "bare", "ghost"),
    ("looped_general", "bare", "ghost_general"),
    ("residual", "bare", "ghost"),
    ("looped", "residual", "ghost"),
    ("looped", "bare", "streamline"),
    ("looped_general", "bare", "streamline"),
    ("looped_general", "bare", "streamline_general"),
    ("looped_general", "bare", "none+distill"),
    ("looped_general", "bare", "ghost_general+distill"),
    ("looped_general", "bare", "streamline_general+distill"),
)

COSTS = "costs.json"
COUNTED = ("parameters", "prefill", "decode")

Cost = tuple[str, int, int]
"""Repair without its healing, which is merged; layers removed; runs of them: what a cost follows from."""
Pair = tuple[str, str]
Cells = Mapping[tuple[str, int], np.ndarray]
"""What a variant did on each document, (documents,), by case and seed."""


@dataclass(frozen=True)
class Difference:
    """Mean of a difference, and its 95 % intervals over documents and over cases; cells are cases × seeds."""

    mean: float
    documents: tuple[float, float]
    cases: tuple[float, float]
    n_cases: int
    n_cells: int


def difference(one: Cells, other: Cells, seed: int = 0) -> Difference | None:
    """`one` less `other` on the cells that both have; None where they have none in common.

    The mean is over documents, then over the seeds of a case, then over cases. Documents are drawn within each case,
    the same ones for all of its seeds, since these differ in calibration only. Over k cases the interval is Student's t
    with k - 1; seeds of a case are alike, and count as one. It is unknown (NaN) for one case.
    """
    common = sorted(set(one) & set(other))
    if not common:
        return None
    gaps = {cell: one[cell].astype(float) - other[cell].astype(float) for cell in common}
    cases = sorted({case for case, _ in common})
    draws = []
    for number, case in enumerate(cases):
        gap = np.mean([gaps[cell] for cell in common if cell[0] == case], axis=0)
        draws.append(bootstrap_weights(len(gap), seed + number) @ gap)
    over_documents = np.mean(draws, axis=0)
    means = np.array([drawn[0] for drawn in draws])
    low, high = interval(over_documents[1:])
    return Difference(float(means.mean()), (float(low), float(high)), over_tasks(means), len(cases), len(common))


def over_tasks(means: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of what was found on each of some tasks, by Student's t; NaN for one task."""
    if len(means) < 2:
        return float("nan"), float("nan")
    half = float(student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5)
    return float(means.mean()) - half, float(means.mean()) + half


class Results:
    """Rows of all files in a folder, of the selectors, repairs and seeds asked for."""

    def __init__(self, folder: Path, selectors: Sequence[str], repairs: Sequence[str], seeds: Sequence[int]) -> None:
        every = (row for path in sorted(folder.glob("*.parquet")) for row in store.read(path).to_pylist())
        rows = [row for row in every if row["seed"] in seeds]
        there = {(row["selector"], row["repair"]) for row in rows if row["removed"]}
        self.rows = [row for row in rows if row["refused"] is None]
        self.sizes = sorted({row["removed"] for row in rows} - {0})
        self.selectors = [name for name in selectors if name in {selector for selector, _ in there}]
        self.pairs = [(one, other) for one in self.selectors for other in repairs if (one, other) in there]

    def of(self, removed: int, pair: Pair) -> list[dict[str, Any]]:
        """Rows of a size and a pair of selector and repair."""
        known = [row for row in self.rows if row["removed"] == removed]
        return [row for row in known if (row["selector"], row["repair"]) == pair]

    def most(self, removed: int) -> int:
        """The largest number of cells of any pair."""
        return max(len(self.of(removed, pair)) for pair in self.pairs)

    def cells(self, removed: int, pair: Pair, column: str) -> dict[tuple[str, int], np.ndarray]:
        """A number per document, by case and seed: a column, or `loss`, whose mean is the loss per token."""
        found = {}
        for row in self.of(removed, pair):
            losses = np.array(row["nll"]) * len(row["tokens"]) / sum(row["tokens"])
            found[row["case"], row["seed"]] = losses if column == "loss" else np.array(row[column])
        return found

    def mean(self, removed: int, pair: Pair, column: str = "accuracy") -> float:
        """Mean over cases of the mean over seeds."""
        by_case: dict[str, list[float]] = {}
        for row in self.of(removed, pair):
            by_case.setdefault(row["case"], []).append(row[column])
        return float(np.mean([np.mean(values) for values in by_case.values()]))

    def perplexities(self, removed: int, pair: Pair) -> np.ndarray:
        """Perplexity in every cell."""
        return np.array([row["perplexity"] for row in self.of(removed, pair)])


def summary(folder: Path, selectors: Sequence[str], repairs: Sequence[str], seeds: Sequence[int]) -> str:
    """All tables in markdown."""
    results = Results(folder, selectors, repairs, seeds)
    base = results.of(0, ("base", "none"))
    cases = sorted({row["case"] for row in results.rows})
    cells = ", ".join(f"{results.most(size)} with {size} removed" for size in results.sizes)
    documents = f"{len(base[0]['correct'])} documents each, {len(base[0]['nll'])} for perplexity"
    parts = [f"{', '.join(cases)}: {documents}; cells: {cells}."]
    generates = base[0]["generated"] is not None
    parts += [_overview(results, "accuracy"), *([_overview(results, "generated")] if generates else [])]
    for column, meaning in (("correct", "accuracy"), ("loss", "logarithm of the perplexity")):
        parts += [f"Differences of the {meaning}, 95 % over documents; over tasks:", _contrasts(results, column)]
    parts += [f"{size} removed:\n\n{_verdict(results, size)}" for size in results.sizes]
    costs = costs_of(folder)
    if costs:
        parts += [
            "Share of the unpruned model's, lowest and highest over numbers of runs:",
            _costs(costs, results.sizes),
        ]
    return "\n\n".join(parts)


def _overview(results: Results, figure: str) -> str:
    """Pairs × sizes; in brackets the number of cells where some are missing."""

    def cell(size: int, pair: Pair) -> str:
        rows = results.of(size, pair)
        if not rows:
            return "–"
        missing = f" [{len(rows)}]" if size and len(rows) < results.most(size) else ""
        return _figures(results, size, pair, figure) + missing

    head = [f"{figure} / perplexity: median, worst", *map(str, results.sizes)]
    unpruned = ["unpruned", cell(0, ("base", "none")), *[""] * (len(results.sizes) - 1)]
    rows = [[" × ".join(pair), *(cell(size, pair) for size in results.sizes)] for pair in results.pairs]
    return _table(head, [unpruned, *rows])


def _figures(results: Results, size: int, pair: Pair, figure: str = "accuracy") -> str:
    found = results.perplexities(size, pair)
    median, worst = _short(np.median(found)), _short(found.max())
    return f"{results.mean(size, pair, figure):.3f} / {median}, {worst}"


def _contrasts(results: Results, column: str) -> str:
    """Repairs at equal selection, for each and for the mean of all selectors, and selections at equal repair."""

    def told(size: int, one: Sequence[Pair], other: Sequence[Pair]) -> str:
        both = ([results.cells(size, pair, column) for pair in pairs] for pairs in (one, other))
        found = difference(*map(_together, both))
        if found is None:
            return "–"
        missing = f" [{found.n_cells}]" if found.n_cells < results.most(size) else ""
        return _told(found) + missing

    compared: list[tuple[str, list[Pair], list[Pair]]] = []
    for one, other in REPAIRS:
        each = [name for name in results.selectors if {(name, one), (name, other)} <= set(results.pairs)]
        for names in ([each] if len(each) > 1 else []) + [[name] for name in each]:
            label = "all selectors" if len(names) > 1 else names[0]
            pairs = ([(name, repair) for name in names] for repair in (one, other))
            compared.append((f"{one} - {other}, {label}", *pairs))
    for one, other, repair in SELECTIONS:
        if {(one, repair), (other, repair)} <= set(results.pairs):
            compared.append((f"{one} - {other}, {repair}", [(one, repair)], [(other, repair)]))
    rows = [[label, *(told(size, one, other) for size in results.sizes)] for label, one, other in compared]
    return _table(["", *map(str, results.sizes)], rows)


def _together(parts: Sequence[Cells]) -> dict[tuple[str, int], np.ndarray]:
    """The mean over several variants, in the cells that all of them have."""
    common = set.intersection(*(set(part) for part in parts))
    return {cell: np.mean([part[cell] for part in parts], axis=0) for cell in common}


def _verdict(results: Results, size: int) -> str:
    """The best pairs, those that no other beats in accuracy and median perplexity, and lamina's against published."""
    repaired = [pair for pair in results.pairs if pair[1] != "none"]
    ranked = sorted(
        (pair for pair in repaired if len(results.of(size, pair)) == results.most(size)),
        key=lambda pair: -results.mean(size, pair),
    )
    front: list[Pair] = []
    for pair in ranked:
        if all(np.median(results.perplexities(size, pair)) < np.median(results.perplexities(size, o)) for o in front):
            front.append(pair)

    def called(pair: Pair) -> str:
        return f"{' × '.join(pair)} {_figures(results, size, pair)}"

    lines = [
        "best: " + "; ".join(map(called, ranked[:3])),
        "no other is more accurate and better at general text: " + "; ".join(map(called, front)),
    ]
    for trained, meaning in enumerate(TRAINING):
        allowed = [pair for pair in ranked if _training(pair[1]) <= trained]
        published = [pair for pair in allowed if pair[0] in PUBLISHED[0] and pair[1] in PUBLISHED[1]]
        ours = [pair for pair in allowed if pair not in published]
        if published and ours:
            found = difference(results.cells(size, ours[0], "correct"), results.cells(size, published[0], "correct"))
            assert found is not None
            lines.append(f"{meaning}: {called(ours[0])} less best published {called(published[0])}: {_told(found)}")
    return "\n".join(f"- {line}" for line in lines)


def cost_key(row: Mapping[str, Any]) -> Cost:
    """What the cost of a row's variant follows from."""
    # No layer number is that large, so a run at the end of the model needs no other rule.
    return row["repair"].partition("+")[0], row["removed"], len(runs(removed_layers(row["units"]), 10**6))


def costs_of(folder: Path) -> dict[Cost, dict[str, float]]:
    """What `repair_costs.py` counted, as shares of the unpruned model's; nothing where it was not run."""
    path = folder / COSTS
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {(row["repair"], row["removed"], row["runs"]): {name: row[name] for name in COUNTED} for row in found}


def _costs(costs: Mapping[Cost, Mapping[str, float]], sizes: Sequence[int]) -> str:
    """Counts × sizes: of what costs as much as no repair does, and of what adds to each run."""
    adding = {
        name for (name, size, _), found in costs.items() if any(found != costs[key] for key in _bare(costs, size))
    }
    rows = []
    for figure, adds in itertools.product(COUNTED, (False, True)):
        alike = {key: found[figure] for key, found in costs.items() if (key[0] in adding) == adds}
        ends = [sorted(f"{value:.3f}" for (_, removed, _), value in alike.items() if removed == size) for size in sizes]
        names = ", ".join(sorted({name for name, _, _ in alike}))
        cells = [" … ".join(dict.fromkeys((values[0], values[-1]))) if values else "–" for values in ends]
        rows.append([f"{figure}: {names}", *cells])
    return _table(["", *map(str, sizes)], rows)


def _bare(costs: Mapping[Cost, Any], size: int) -> list[Cost]:
    """Keys of unrepaired variants of a size, which all cost the same."""
    return [key for key in costs if key[:2] == ("none", size)][:1]


def _training(repair: str) -> int:
    """Place in TRAINING."""
    return 2 if "+" in repair else int(repair.startswith("streamline"))


def _told(found: Difference) -> str:
    """With the interval over tasks where there are more than two."""
    documents, cases = (f"{low:+.3f} … {high:+.3f}" for low, high in (found.documents, found.cases))
    return f"{found.mean:+.3f} ({documents}{f'; {cases}' if found.n_cases > 2 else ''})"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""What the rows of `repair.py` say: means over tasks, and paired differences between variants with their intervals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.relevance.statistics import bootstrap_weights, interval
from lamina.tables import store

SCHEMA = pa.schema(
    [
        ("case", pa.string()),
        ("seed", pa.int64()),
        ("selector", pa.string()),
        ("recovery", pa.string()),
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
PUBLISHED = ("bare", "cosine", "angular"), ("ghost", "linearpatch", "linearpatch_diag", "replaceme", "prune_comp")
CONTRASTS = (
    ("ghost", "replaceme"),
    ("ghost", "linearpatch"),
    ("ghost_general", "replaceme_general"),
    ("ghost_general", "linearpatch_general"),
)

Pair = tuple[str, str]
Cells = Mapping[tuple[str, int], np.ndarray]
"""What a variant did on each document, (documents,), by case and seed."""


@dataclass(frozen=True)
class Difference:
    """Mean of a difference, and its 95 % intervals over documents and over cells (cases × seeds)."""

    mean: float
    documents: tuple[float, float]
    cells: tuple[float, float]
    n_cells: int


def difference(one: Cells, other: Cells, seed: int = 0) -> Difference | None:
    """`one` less `other` on the cells that both have; None where they have none in common.

    The mean is over documents, then over the seeds of a case, then over cases. Documents are drawn within each case,
    the same ones for all of its seeds, since these differ in calibration only. Cells are drawn with all their
    documents: those of one case are alike, so with few cases that interval is rather too narrow.
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
    over_cells = bootstrap_weights(len(common), seed) @ np.array([gaps[cell].mean() for cell in common])
    ends = [tuple(map(float, interval(drawn[1:]))) for drawn in (over_documents, over_cells)]
    return Difference(float(over_documents[0]), *ends, len(common))


class Results:
    """Rows of all files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.rows = [row for path in sorted(folder.glob("*.parquet")) for row in store.read(path).to_pylist()]
        self.sizes = sorted({row["removed"] for row in self.rows})
        self.selectors = list(dict.fromkeys(row["selector"] for row in self.rows if row["removed"]))
        self.recoveries = list(dict.fromkeys(row["recovery"] for row in self.rows))

    def of(self, removed: int, pair: Pair) -> list[dict[str, Any]]:
        """Rows of a size and a pair of selector and recovery, without refused ones."""
        known = [row for row in self.rows if row["removed"] == removed and row["refused"] is None]
        return [row for row in known if (row["selector"], row["recovery"]) == pair]

    def complete(self, removed: int) -> list[Pair]:
        """Pairs that were measured in as many cells as any."""
        pairs = [(selector, recovery) for selector in self.selectors for recovery in self.recoveries]
        most = max((len(self.of(removed, pair)) for pair in pairs), default=0)
        return [pair for pair in pairs if most and len(self.of(removed, pair)) == most]

    def cells(self, removed: int, pair: Pair, column: str = "correct") -> dict[tuple[str, int], np.ndarray]:
        """What was right, by case and seed."""
        return {(row["case"], row["seed"]): np.array(row[column]) for row in self.of(removed, pair)}

    def mean(self, removed: int, pair: Pair, column: str = "accuracy") -> float:
        """Mean over cases of the mean over seeds."""
        by_case: dict[str, list[float]] = {}
        for row in self.of(removed, pair):
            by_case.setdefault(row["case"], []).append(row[column])
        return float(np.mean([np.mean(values) for values in by_case.values()]))

    def perplexities(self, removed: int, pair: Pair) -> np.ndarray:
        """Perplexity in every cell."""
        return np.array([row["perplexity"] for row in self.of(removed, pair)])


def summary(folder: Path) -> str:
    """All tables in markdown."""
    results = Results(folder)
    base = results.of(0, ("base", "none"))
    counted = {size: len(results.of(size, (results.selectors[0], "none"))) for size in results.sizes if size}
    parts = [
        f"Cases: {', '.join(sorted({row['case'] for row in results.rows}))}; seeds by size: "
        + ", ".join(f"{size}: {count} cells" for size, count in counted.items())
        + f"; {len(base[0]['correct'])} documents each, {len(base[0]['nll'])} of general text."
    ]
    parts.append(
        _table(["unpruned", *_figures()], [["", *(_figure(results, 0, ("base", "none"), f) for f in _figures())]])
    )
    for size in counted:
        parts += [f"### {size} removed", _size(results, size), _contrasts(results, size), _verdict(results, size)]
    return "\n\n".join(parts)


def _figures() -> list[str]:
    return ["accuracy", "generated", "perplexity: median, worst"]


def _figure(results: Results, removed: int, pair: Pair, figure: str) -> str:
    rows = results.of(removed, pair)
    if not rows:
        return "–"
    if figure.startswith("perplexity"):
        found = results.perplexities(removed, pair)
        return f"{_short(np.median(found))}, {_short(found.max())}"
    if any(row[figure] is None for row in rows):
        return "–"
    return f"{results.mean(removed, pair, figure):.3f}"


def _size(results: Results, size: int) -> str:
    """Selectors × recoveries; in brackets the number of cells where some are missing."""
    most = max(len(results.of(size, (selector, "none"))) for selector in results.selectors)

    def cell(pair: Pair) -> str:
        rows = results.of(size, pair)
        if not rows:
            return "–"
        accuracy, generated, perplexity = (_figure(results, size, pair, figure) for figure in _figures())
        some = f" [{len(rows)}]" if len(rows) < most else ""
        return f"{accuracy}, {generated} / {perplexity}{some}"

    recoveries = results.recoveries
    return _table(
        ["selector", *recoveries],
        [[selector, *(cell((selector, recovery)) for recovery in recoveries)] for selector in results.selectors],
    )


def _contrasts(results: Results, size: int) -> str:
    """Repairs compared at equal selection."""
    rows = []
    for selector in results.selectors:
        for one, other in CONTRASTS:
            cells = [results.cells(size, (selector, name)) for name in (one, other)]
            if (found := difference(*cells)) is not None:
                rows.append([selector, f"{one} - {other}", *_told(found)])
    return _table(["selector", "repairs", "difference", "over documents", "over cells", "cells"], rows)


def _verdict(results: Results, size: int) -> str:
    """The best pairs, those that no other beats in accuracy and median perplexity, and lamina's against published."""
    pairs = [pair for pair in results.complete(size) if pair[1] != "none"]
    if not pairs:
        return ""
    ranked = sorted(pairs, key=lambda pair: -results.mean(size, pair))
    front: list[Pair] = []
    for pair in ranked:
        if all(_median(results, size, pair) < _median(results, size, other) for other in front):
            front.append(pair)
    is_published: Callable[[Pair], bool] = lambda pair: pair[0] in PUBLISHED[0] and pair[1] in PUBLISHED[1]  # noqa: E731
    lines = [
        "Best: " + "; ".join(_called(results, size, pair) for pair in ranked[:3]) + ".",
        "No other is both more accurate and better at general text: "
        + "; ".join(_called(results, size, pair) for pair in front)
        + ".",
    ]
    theirs = next((pair for pair in ranked if is_published(pair)), None)
    ours = next((pair for pair in ranked if not is_published(pair)), None)
    if theirs and ours:
        found = difference(results.cells(size, ours), results.cells(size, theirs))
        assert found is not None
        mean, documents, cells, count = _told(found)
        lines.append(
            f"Best of lamina, {_called(results, size, ours)}, less best published, {_called(results, size, theirs)}: "
            f"{mean} (documents {documents}; cells {cells}; {count} cells)."
        )
    return "\n".join(f"- {line}" for line in lines)


def _called(results: Results, size: int, pair: Pair) -> str:
    found = results.perplexities(size, pair)
    median, worst = _short(np.median(found)), _short(found.max())
    return f"{pair[0]} × {pair[1]} {results.mean(size, pair):.3f} / {median}, {worst}"


def _median(results: Results, size: int, pair: Pair) -> float:
    return float(np.median(results.perplexities(size, pair)))


def _told(found: Difference) -> list[str]:
    ends = [f"{low:+.3f} … {high:+.3f}" for low, high in (found.documents, found.cells)]
    return [f"{found.mean:+.3f}", *ends, str(found.n_cells)]


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Every selector against every other one at equal size and repair: mean differences with intervals."""

from typing import Any

import duckdb
from matplotlib.figure import Figure

from lamina.report.answers import answer
from lamina.report.figures import style

TITLE = "Which selector wins"
PLACE = 45
TABLES = ("comparisons", "models")
ABOUT = (
    "Mean difference in accuracy between two selectors at equal size and repair, over the calibrations' own tasks, "
    "with 95 % intervals; filled where a paired test corrected for the number of pairs tells them apart."
)
LEVEL = 0.05

QUERIES = ("which_selector_wins",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and repair, one line per pair, one mark per size."""
    groups = style.grouped(data, "model", "repair", "healing")
    pairs = list(dict.fromkeys((row["selector"], row["rival"]) for row in data))
    sizes = sorted({row["removed"] for row in data})
    figure, grid = style.panels(len(groups), 3.6, 0.8 + 0.1 * len(pairs) * (1 + len(sizes)), 3, sharey=True)
    handles: dict[str, Any] = {}
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        axes.axvline(0, color=style.NEUTRAL, linewidth=0.9)
        for place, size in enumerate(sizes):
            look: dict[str, Any] = {
                "color": style.COLOURS[place % len(style.COLOURS)],
                "marker": style.MARKERS[place % len(style.MARKERS)],
            }
            for row in (row for row in chosen if row["removed"] == size):
                at = pairs.index((row["selector"], row["rival"])) + 0.8 * ((place + 0.5) / len(sizes) - 0.5)
                ends = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
                inside = None if row["p_holm"] < LEVEL else "white"
                bars = axes.errorbar(
                    row["difference"], at, xerr=ends, linestyle="", capsize=2, markersize=4.5, mfc=inside, **look
                )
                handles.setdefault(f"{size} removed", bars)
        repair = " then ".join(part for part in group[1:] if part != "none") or "no repair"
        axes.set_title(theme.title(group[0], repair))
        axes.set_xlabel("points of accuracy")
        axes.set_yticks(range(len(pairs)), [f"{one} − {other}" for one, other in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Pairs with a mean over tasks, in points of accuracy."""
    rows = [row for row in answer(connection, QUERIES[0]) if row["difference"] is not None]
    points = {"difference": "difference", "low": "ci_low", "high": "ci_high"}
    return [row | {name: 100 * row[column] for name, column in points.items()} for row in rows]


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of documents."""
    return (
        "First selector less the second, mean over the calibrations' own tasks, on the same test documents "
        f"({style.counts([row['n_samples'] for row in data])} of all tasks); right of 0 the first is better. Lines: "
        "95 % intervals of each pair alone. Filled: told apart at 5 % by flipping the signs of documents' differences, "
        "corrected for the pairs of the same size and repair (Holm); hollow: not told apart."
    )

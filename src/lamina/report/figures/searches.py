"""The result of searching whole sets: loss on the searched samples and on held-back ones, with greedy and one-shot."""

from math import isfinite
from typing import Any

import duckdb
from matplotlib.figure import Figure

from lamina.report.figures import style
from lamina.tables.answers import answer

TITLE = "What searching whole sets finds"
PLACE = 85
TABLES = ("searches", "models")
ABOUT = (
    "Loss of the sets that a search, greedy and one-shot removal end with, on the samples that they were chosen on and "
    "on samples held back, with 95 % intervals."
)

QUERIES = ("what_searching_found",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per search, one line of held-back losses over sizes per strategy; hollow marks are search losses."""
    groups = style.grouped(data, "model", "calibration", "selector")
    ways = list(dict.fromkeys(row["strategy"] for row in data))
    figure, grid = style.panels(len(groups), 3.2, 2.6, 3)
    handles: dict[str, Any] = {}
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        for place, way in enumerate(ways):
            rows = [row for row in chosen if row["strategy"] == way]
            look: dict[str, Any] = {"color": style.COLOURS[place], "marker": style.MARKERS[place]}
            # Strategies stand beside each other, or equal ends would hide all but one.
            sizes = [row["removed"] + 0.08 * (place - (len(ways) - 1) / 2) for row in rows]
            errors = [style.reach(row["stderr"]) for row in rows]
            losses = [row["loss"] for row in rows]
            bars = axes.errorbar(sizes, losses, errors, linestyle=style.DASHES[place], capsize=2, markersize=5, **look)
            axes.scatter(sizes, [row["search_loss"] for row in rows], s=26, facecolor="white", zorder=4, **look)
            handles.setdefault(way, bars)
        axes.set_title(theme.title(group[0], f"{group[1]}, {group[2]}"))
        axes.set_xlabel("units removed")
        axes.set_ylabel("mean loss")
        style.whole_numbers(axes)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Sets that something was removed in, with a loss that is a number."""
    rows = answer(connection, QUERIES[0])
    return [row for row in rows if row["removed"] > 0 and row["loss"] is not None and isfinite(row["loss"])]


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Mean loss behind the selector's metric (1 - accuracy for accuracy). Filled: on calibration samples held back "
        f"from every strategy, with 95 % intervals ({style.counts([row['n_samples'] for row in data])} samples); "
        "hollow: the same sets on the samples that they were chosen on, which flatter the best of many."
    )

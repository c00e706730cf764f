"""The error of the stream behind a removed run of layers: without a repair, and with it."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style

TITLE = "How much of each removed run a repair makes up for"
PLACE = 52
TABLES = ("patches", "models")
ABOUT = (
    "Relative error at the boundary of every removed run, without a repair (bar) and with it, on samples that it was "
    "fitted on (white) and on unseen ones (filled, with 95 % intervals)."
)

QUERIES = ("how_well_repairs_fit",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration; at each run a bar for the error without a repair, and a pair of points per repair."""
    groups = style.grouped(data, "model", "calibration")
    repairs = sorted({row["repair"] for row in data})
    most = max(len(style.grouped(chosen, "start", "end")) for chosen in groups.values())
    width = min(10.0, max(3.2, (0.1 + 0.14 * len(repairs)) * most + 0.8))
    figure, grid = style.panels(len(groups), width, 2.7, max(1, int(11 / width)))
    for axes, ((model, calibration), chosen) in zip(grid, groups.items(), strict=True):
        panel(axes, chosen, repairs)
        axes.set_title(theme.title(model, calibration))
    handles: list[Any] = [Line2D([], [], color="#c7c7c7", linewidth=7)]
    labels = ["nothing in its place"]
    for place, name in enumerate(repairs):
        handles += [Line2D([], [], **look(place)), Line2D([], [], **look(place, "white"))]
        labels += [f"{name}, unseen", f"{name}, fitted"]
    style.legend_below(figure, handles, labels, 5)
    return figure


def look(place: int, fill: str | None = None) -> dict[str, Any]:
    """Marker of a repair."""
    colour = style.COLOURS[place % len(style.COLOURS)]
    marker = style.MARKERS[place % len(style.MARKERS)]
    return dict(color=colour, marker=marker, linestyle="", markersize=4.5, markerfacecolor=fill or colour)


def panel(axes: Axes, data: list[dict[str, Any]], repairs: list[str]) -> None:
    """Draw the repairs of each run side by side, the fitted error at the left of the unseen error."""
    runs = list(dict.fromkeys((row["start"], row["end"]) for row in data))
    step = 0.8 / len(repairs)
    for row in data:
        spot = runs.index((row["start"], row["end"]))
        place = repairs.index(row["repair"])
        x = spot + (place - (len(repairs) - 1) / 2) * step
        axes.bar(x, row["before"], step, color="#c7c7c7", zorder=1)
        axes.plot(x - 0.2 * step, row["fitted"], **look(place, "white"), zorder=3)
        error = style.reach(row["stderr"])
        axes.errorbar(x + 0.2 * step, row["unseen"], error, **look(place), elinewidth=0.9, capsize=1.6, zorder=4)
        reach = style.interval(row["unseen"], row["stderr"])
        said = f"{row['repair']}, layers {row['start']} to {row['end'] - 1}: {reach} unseen, n = {row['n_heldout']}"
        style.hints(axes, [(x + 0.2 * step, row["unseen"], said)])
    names = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in runs]
    axes.set_xticks(range(len(runs)), names, rotation=90 if len(runs) > 12 else 0)
    axes.grid(False, axis="x")
    axes.set(xlabel="layers removed", ylabel="relative error of the stream", ylim=(0, None))


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Relative error ‖Y − Ŷ‖ / ‖Y‖ of the residual stream behind each run of removed layers, Y being the unpruned "
        "model's. Bars: the stream as it entered the run, on unseen samples. Points: with a repair that has not seen "
        "the unseen samples; where white and filled ones part, it remembers its calibration. Intervals: 95 %, "
        f"bootstrap over {style.counts([row['n_heldout'] for row in data])} unseen samples, of "
        f"{style.counts([row['n_samples'] for row in data])} in all."
    )

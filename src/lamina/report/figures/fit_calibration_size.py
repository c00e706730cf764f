"""How many samples a repair needs, and how the ridge helps with few: errors of nested fits on unseen samples."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.report.figures import style

TITLE = "How many samples a repair needs"
PLACE = 54
TABLES = ("diagnoses", "models")
ABOUT = (
    "Error of a linear map in the place of each run of layers on unseen samples, as a share of the error with nothing "
    "there: against the number of samples that it was fitted on, and against the ridge."
)

QUERIES = ("how_many_samples_a_repair_needs",)
NOTHING: dict[str, Any] = dict(color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per calibration and diagnosis: a line per run against the samples, a line per size against λ."""
    groups = list(dict.fromkeys((row["model"], row["calibration"], row["diagnosis"]) for row in data))
    numbers = sorted({row["n_samples"] for row in data})
    looks = {
        number: dict(color=colour, marker=style.MARKERS[place % len(style.MARKERS)], markersize=3, linewidth=1.1)
        for place, (number, colour) in enumerate(zip(numbers, shades(len(numbers)), strict=True))
    }
    figure, grid = style.panels(2 * len(groups), 3.6, 3.0, 4 if len(groups) > 1 else 2)
    for turn, group in enumerate(groups):
        chosen = [row for row in data if (row["model"], row["calibration"], row["diagnosis"]) == group]
        several = len({other[2] for other in groups}) > 1
        name = f"{group[1]}, {group[2]}" if several else group[1]
        sizes(grid[2 * turn], [row for row in chosen if row["measure"] == "validated_error"])
        ridges(grid[2 * turn + 1], [row for row in chosen if row["measure"] == "unseen_error"], looks)
        grid[2 * turn].set_title(theme.title(group[0], name))
    handles = [Line2D([], [], **NOTHING), *(Line2D([], [], **look) for look in looks.values())]
    labels = ["nothing in its place", *(f"{number:,} samples" for number in numbers)]
    style.legend_below(figure, handles, labels, 8)
    return figure


def shades(count: int) -> Any:
    """Colours from dark to light, without the lightest, that every reader can distinguish, also in grey."""
    return matplotlib.colormaps["viridis"](np.linspace(0, 0.88, max(count, 2)))[:count]


def sizes(axes: Axes, data: list[dict[str, Any]]) -> None:
    """Draw errors against the number of samples, λ validated; each line ends with the number of its first layer."""
    layers = sorted({row["layer"] for row in data})
    ends = []
    for layer, colour in zip(layers, shades(len(layers)), strict=True):
        line = [row for row in data if row["layer"] == layer]
        x, y = [row["n_samples"] for row in line], [row["value"] for row in line]
        axes.errorbar(x, y, [row["reach"] or 0 for row in line], color=colour, linewidth=1.1, elinewidth=1.6)
        ends.append((y[-1], layer, colour))
    axes.axhline(1, **NOTHING)
    axes.set_ylim(0, None)
    ends.sort(key=lambda end: end[:2])
    for spot, (_, layer, colour) in zip(spread([end[0] for end in ends], axes.get_ylim()[1] / 24), ends, strict=True):
        at = (1.01, spot)
        axes.annotate(str(layer), at, xycoords=("axes fraction", "data"), va="center", fontsize=6.5, color=colour)
    axes.set_xscale("log", base=2)
    ticks = sorted({row["n_samples"] for row in data})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="samples fitted on", ylabel="unseen error / without repair")


def spread(places: list[float], apart: float) -> list[float]:
    """Places in rising order, moved up and down just so far that labels do not overlap."""
    spots = list(places)
    for _ in range(200):
        for at in range(1, len(spots)):
            lack = (apart - spots[at] + spots[at - 1]) / 2
            if lack > 0:
                spots[at - 1 : at + 1] = spots[at - 1] - lack, spots[at] + lack
    return spots


def ridges(axes: Axes, data: list[dict[str, Any]], looks: dict[int, dict[str, Any]]) -> None:
    """Draw means over all runs against λ; the reach is the mean of the runs' reaches, as if errors were the same."""
    grid = sorted({row["point"] for row in data})
    cells: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for row in data:
        cells.setdefault((row["n_samples"], row["point"]), []).append((row["value"], row["reach"] or 0))
    for number in sorted({row["n_samples"] for row in data}):
        y, reach = np.array([np.mean(cells[number, point], axis=0) for point in grid]).T
        axes.plot(range(len(grid)), y, **looks[number])
        axes.fill_between(
            range(len(grid)), np.maximum(y - reach, 0.01), y + reach, color=looks[number]["color"], alpha=0.2
        )
    axes.axhline(1, **NOTHING)
    names = ["0" if point == 0 else f"$10^{{{round(np.log10(point))}}}$" for point in grid]
    every = range(0, len(grid), 1 + len(grid) // 8)
    axes.set_xticks(list(every), [names[place] for place in every])
    axes.set(xlabel="ridge λ / mean eigenvalue", ylabel="unseen error / without repair", yscale="log")
    low, high = axes.get_ylim()
    marks = [mark for mark in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= mark <= high]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.set_yticks([], minor=True)


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Error on unseen samples of a linear map fitted on some of the calibration "
        f"({style.counts([row['n_samples'] for row in data])} samples), as a share of the error with nothing in the "
        "place of the run. Left: a line per run, named after its first layer, with the validated ridge; a line that "
        "still falls at its end wants more samples. Right: the mean over runs for every ridge. Intervals: 95 %, over "
        "draws of the unseen samples and of the order; draws share samples, so they are too narrow for large sizes."
    )

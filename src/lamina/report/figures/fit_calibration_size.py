"""How many samples a repair needs, and how the ridge helps with few: errors of nested fits on unseen samples."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from lamina.report.figures import style

TITLE = "How many samples a repair needs"
PLACE = 54
TABLES = ("diagnoses", "models")
KINDS = ("fit",)
QUERIES = ("how_many_samples_a_repair_needs",)
COLOURS = matplotlib.colormaps["viridis"]
NOTHING: dict[str, Any] = dict(color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per calibration and diagnosis: a line per run against the samples, a line per size against λ."""
    groups = style.grouped(data, "model", "calibration", "diagnosis")
    numbers = sorted({row["n_samples"] for row in data})
    shades = COLOURS(np.linspace(0, 0.88, max(len(numbers), 2)))
    looks = {
        number: dict(color=shades[place], marker=style.MARKERS[place % len(style.MARKERS)], markersize=3, linewidth=1.1)
        for place, number in enumerate(numbers)
    }
    scale = Normalize(0, max(row["layer"] for row in data) or 1)
    figure, grid = style.panels(2 * len(groups), 3.6, 3.0, 4 if len(groups) > 1 else 2)
    for turn, ((model, calibration, diagnosis), chosen) in enumerate(groups.items()):
        several = len({name for _, _, name in groups}) > 1
        sizes(grid[2 * turn], [row for row in chosen if row["measure"] == "validated_error"], scale)
        ridges(grid[2 * turn + 1], [row for row in chosen if row["measure"] == "unseen_error"], looks)
        grid[2 * turn].set_title(theme.title(model, f"{calibration}, {diagnosis}" if several else calibration))
    style.colour_bar(figure, grid, scale, COLOURS, "first layer of the run (left panels)", 0.4)
    named = [(f"{number:,} samples", look) for number, look in looks.items()]
    style.legend_below(figure, [("nothing in its place", NOTHING), *named], 8)
    return figure


def sizes(axes: Axes, data: style.Rows, scale: Normalize) -> None:
    """Draw errors against the number of samples, λ validated, a line for each run of layers."""
    for (layer,), line in style.grouped(data, "layer").items():
        x, y = [row["n_samples"] for row in line], [row["value"] for row in line]
        reach = [row["reach"] or 0 for row in line]
        axes.errorbar(x, y, reach, color=COLOURS(scale(layer)), linewidth=1.1, elinewidth=1.6)
        said = (f"run from layer {layer}, {row['n_samples']} samples: {row['value']:.3f}" for row in line)
        style.hints(axes, zip(x, y, said, strict=True))
    axes.axhline(1, **NOTHING)
    axes.set_ylim(0, None)
    style.doubling(axes, (row["n_samples"] for row in data))
    axes.set(xlabel="samples fitted on", ylabel="unseen error / without repair")


def ridges(axes: Axes, data: style.Rows, looks: dict[int, dict[str, Any]]) -> None:
    """Draw means over all runs against λ; the reach is the mean of the runs' reaches, as if errors were the same."""
    grid, cells = sorted({row["point"] for row in data}), style.grouped(data, "n_samples", "point")
    for number in sorted({row["n_samples"] for row in data}):
        pairs = [[(row["value"], row["reach"] or 0) for row in cells[number, point]] for point in grid]
        y, reach = np.array([np.mean(each, axis=0) for each in pairs]).T
        axes.plot(range(len(grid)), y, **looks[number])
        bottom = np.maximum(y - reach, 0.01)
        axes.fill_between(range(len(grid)), bottom, y + reach, color=looks[number]["color"], alpha=0.2)
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
    return (
        "Error on unseen samples of a linear map fitted on some of the calibration "
        f"({style.counts([row['n_samples'] for row in data])} samples), as a share of the error with nothing in the "
        "place of the run. Left: a line per run, coloured by its first layer, with the validated ridge; a line that "
        "still falls at its end wants more samples. Right: the mean over runs for every ridge. Intervals: 95 %, over "
        "draws of the unseen samples and of the order; draws share samples, so they are too narrow for large sizes."
    )

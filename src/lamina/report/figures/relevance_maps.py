"""Accuracy relevance beside cosine relevance: which layers each calibration needs, and which layers look inert."""

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from lamina.report.answers import answer
from lamina.report.figures import style

TITLE = "Which layers matter"
PLACE = 10
LEAD = 1
TABLES = ("relevance", "models", "calibrations")
# White is "nothing lost"; the warm side darkens steadily, so that it reads in grey, and the cool side is short.
ACCURACY = LinearSegmentedColormap.from_list(
    "accuracy",
    [(0, "#2f7fb8"), (1 / 3, "#ffffff"), (0.55, "#fdc57f"), (0.78, "#d7540f"), (1, "#5b1203")],
)
ACCURACY_SCALE = Normalize(-0.5, 1)
COSINE = LinearSegmentedColormap.from_list("cosine", ["#ffffff", "#a6cfc4", "#3f8f8a", "#0b3c49"])
Cell = tuple[int, int]  # column and line
QUERIES = ("which_layers_matter",)
# Of a cell, which lies within its panel: neither to be cut off nor to be made room for.
CELL: dict[str, Any] = {
    "edgecolor": "white",
    "linewidth": 0.5,
    "clip_on": False,
    "in_layout": False,
}


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Layers down, calibrations across; one row of two panels per model and kind of unit."""
    grouped = style.grouped(data, "model", "component")
    groups = sorted(grouped.items(), key=lambda group: (group[0][0], group[0][1] != "layer"))
    draws = {
        row["calibration"]: row["n_draws"] for row in sorted(data, key=lambda row: row["n_draws"])
    }
    calibrations = sorted(draws)
    named = [
        f"{name}\n(mean of {draws[name]})" if draws[name] > 1 else name for name in calibrations
    ]
    depths = [1 + max(row["layer"] for row in chosen) for _, chosen in groups]
    width = max(3.2, 0.52 * len(calibrations) + 1.6)
    row_height = 0.30 if max(depths) <= 16 else 0.24
    heights = [row_height * depth + 1.2 for depth in depths]
    figure = Figure(figsize=(2 * width, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
    values = [row["cosine"] for row in data if row["cosine"] is not None and row["cosine"] > 0]
    scale = cosine_scale(values)
    for ((model, component), chosen), depth, (left, right) in zip(
        groups, depths, grid, strict=True
    ):
        kind = "" if component == "layer" else f" ({component})"
        for axes, metric in ((left, "accuracy"), (right, "cosine")):
            axes.set_title(theme.title(model, f"{metric} relevance{kind}"))
            style.matrix(axes, len(calibrations), [str(layer) for layer in range(depth)])
            style.slanted(axes, range(len(calibrations)), named)
            axes.set_ylabel("layer (0 = first)")
            for row in chosen:
                cell = (calibrations.index(row["calibration"]), row["layer"])
                if metric == "accuracy":
                    accuracy_cell(axes, cell, row)
                elif row["cosine"] is not None:
                    text = cosine_text(row["cosine"]) + spread_text(
                        row["cosine_spread"], cosine_text
                    )
                    square = number_cell(axes, cell, row["cosine"], text, COSINE, scale)
                    style.hint(square, reading(row, "cosine", 4))
        colour_bar(
            figure, left, ACCURACY_SCALE, ACCURACY, "accuracy lost (share above chance)", "min"
        )
        note = ", log scale" if isinstance(scale, LogNorm) else ""
        colour_bar(figure, right, scale, COSINE, f"1 − cos over the layer{note}", "neither")
    ring: style.Look = dict(
        marker="o", linestyle="", markersize=3.5, markerfacecolor="none", color="black"
    )
    undefined = Patch(facecolor="#dddddd", edgecolor="#888888", hatch="////")
    signs: dict[str, style.Look | Patch] = {
        "95 % interval includes 0": ring,
        "undefined: base model at chance": undefined,
    }
    style.legend_below(figure, signs.items(), 2)
    return figure


def cosine_scale(values: list[float]) -> Normalize:
    """One scale for all panels; logarithmic if the largest value is much larger than the median."""
    if not values:
        return Normalize(0, 1)
    if max(values) > 6 * float(np.median(values)) and min(values) < max(values):
        return LogNorm(min(values), max(values))
    return Normalize(0, max(values))


def cosine_text(value: float) -> str:
    """Three decimals, since a cell has no room for more."""
    return f"{value:.3f}" if value >= 0.0005 else "<.001"


def spread_text(spread: float | None, written: Callable[[float], str]) -> str:
    """A second line for the mean of replicates: the standard deviation between draws."""
    return "" if spread is None else f"\n±{written(spread)}"


def accuracy_cell(axes: Axes, cell: Cell, row: dict[str, Any]) -> None:
    """One cell of the accuracy map: hatched if it is undefined, ringed if its interval includes 0."""
    if row["accuracy"] is None:
        if row["accuracy_reason"] is not None:
            corner = (cell[0] - 0.5, cell[1] - 0.5)
            axes.add_patch(
                Rectangle(
                    corner,
                    1,
                    1,
                    facecolor="#dddddd",
                    edgecolor="#888888",
                    hatch="////",
                    linewidth=0,
                )
            )
        return
    text = f"{row['accuracy']:.2f}".replace("-", "−")
    text = "0.00" if text == "−0.00" else text
    text += spread_text(row["accuracy_spread"], lambda spread: f"{spread:.2f}")
    style.hint(
        number_cell(axes, cell, row["accuracy"], text, ACCURACY, ACCURACY_SCALE),
        reading(row, "accuracy", 3),
    )
    if row["accuracy_low"] is not None and row["accuracy_low"] <= 0 <= row["accuracy_high"]:
        ink = text_colour(ACCURACY(ACCURACY_SCALE(row["accuracy"])))
        ring: style.Look = dict(markersize=2.8, markerfacecolor="none", markeredgewidth=0.7)
        axes.plot(cell[0] + 0.40, cell[1] - 0.30, "o", color=ink, **ring)


def number_cell(
    axes: Axes, cell: Cell, value: float, text: str, colours: Colormap, scale: Normalize
) -> Rectangle:
    """Fill a cell with the colour of `value` and write `text` on it."""
    colour = colours(scale(value))
    square = Rectangle((cell[0] - 0.5, cell[1] - 0.5), 1, 1, facecolor=colour, **CELL)
    axes.add_patch(square)
    size = 5 if "\n" in text else 6.5
    centred = axes.text(
        *cell, text, ha="center", va="center_baseline", fontsize=size, color=text_colour(colour)
    )
    centred.set_in_layout(False)
    return square


def reading(row: dict[str, Any], metric: str, digits: int) -> str:
    """What a cell says under the pointer."""
    value, low, high = (
        f"{row[name] or 0:.{digits}f}" for name in (metric, f"{metric}_low", f"{metric}_high")
    )
    reach = f" [{low}, {high}]" if row[f"{metric}_low"] is not None else ""
    text = f"{row['calibration']}, layer {row['layer']}: {metric} {value}{reach}, n = {row[f'{metric}_samples']}"
    return text.replace("-", "−")


def text_colour(background: tuple[float, ...]) -> str:
    """Black or white, whichever reads better on `background` (by luma)."""
    luma = 0.299 * background[0] + 0.587 * background[1] + 0.114 * background[2]
    return "black" if luma > 0.55 else "white"


def colour_bar(
    figure: Figure, axes: Axes, scale: Normalize, colours: Colormap, label: str, extend: str
) -> None:
    bar = style.colour_bar(figure, axes, scale, colours, label, 0.9, aspect=30, extend=extend)
    if isinstance(scale, LogNorm):
        bar.ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.xaxis.set_major_formatter("{x:g}")
        bar.ax.xaxis.set_minor_locator(NullLocator())


def data(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Every unit and calibration; replicated calibrations as their mean."""
    rows = [
        row | {"n_draws": row["n_draws"] or 1}
        for row in answer(connection, QUERIES[0])
        if row["draw_of"] is None
    ]
    return sorted(
        rows, key=lambda row: (row["model"], row["component"], row["calibration"], row["layer"])
    )


def caption(data: style.Rows) -> str:
    accuracy = style.counts([row["accuracy_samples"] for row in data])
    cosine = style.counts([row["cosine_samples"] for row in data])
    means = " Of replicates the mean and, below it, the standard deviation of a draw; rings then go by Student's t."
    return (
        "Relevance of each layer of the base model for each calibration. Left: what removing the layer costs, as a "
        "share of the accuracy above chance (1 = all lost, 0 = nothing lost, negative = better without; calibration "
        f"samples, {accuracy} per cell; a ring marks cells whose 95 % bootstrap interval includes 0). Right: how far "
        f"the layer turns the residual stream ({cosine} per cell). Each side has one colour scale for all its panels; "
        "the left one is the same in every report."
    ) + (means if max(row["n_draws"] for row in data) > 1 else "")

"""Accuracy relevance next to cosine relevance.

It shows which layers each calibration needs, and which look inert.
"""

from collections.abc import Callable
from typing import Any

import duckdb
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import (
    Cell,
    choose_scale,
    choose_text_colour,
    draw_number_cell,
)

TITLE = "Which layers matter"
POSITION = 10
LEAD = 1
TABLES = ("relevance", "models", "calibrations")
QUERIES = ("which_layers_matter",)
# White means that nothing is lost. The warm side darkens steadily, so that it reads well in grey;
# the cool side is short.
ACCURACY = LinearSegmentedColormap.from_list(
    "accuracy",
    [(0, "#2f7fb8"), (1 / 3, "#ffffff"), (0.55, "#fdc57f"), (0.78, "#d7540f"), (1, "#5b1203")],
)
ACCURACY_SCALE = Normalize(-0.5, 1)
COSINE = LinearSegmentedColormap.from_list("cosine", ["#ffffff", "#a6cfc4", "#3f8f8a", "#0b3c49"])
UNDEFINED_STYLE: dict[str, Any] = {
    "facecolor": "#dddddd",
    "edgecolor": "#888888",
    "hatch": "////",
}


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """Every unit and calibration, with the mean of replicated calibrations."""
    rows = []
    for row in answer_question(connection, QUERIES[0]):
        if row["draw_of"] is None:
            rows.append(row | {"n_draws": row["n_draws"] or 1})
    return sorted(
        rows, key=lambda row: (row["model"], row["component"], row["calibration"], row["layer"])
    )


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """Layers down, calibrations across; one row of two panels per model and kind of unit."""
    groups = group_rows(rows, "model", "component")
    keys = sorted(groups, key=lambda key: (key[0], key[1] != "layer"))
    depths = [_count_layers(groups[key]) for key in keys]
    columns = _name_columns(rows)

    width = max(3.2, 0.52 * len(columns) + 1.6)
    row_height = 0.30 if max(depths) <= 16 else 0.24
    heights = [row_height * depth + 1.2 for depth in depths]
    figure = Figure(figsize=(2 * width, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
    cosine_scale = choose_scale(row["cosine"] for row in rows if row["cosine"] is not None)

    for key, depth, (accuracy_axes, cosine_axes) in zip(keys, depths, grid, strict=True):
        model, component = key
        for axes, metric in ((accuracy_axes, "accuracy"), (cosine_axes, "cosine")):
            kind = "" if component == "layer" else f" ({component})"
            axes.set_title(theme.format_title(model, f"{metric} relevance{kind}"))
            _set_up_map(axes, depth, list(columns.values()))
        _draw_accuracy(accuracy_axes, groups[key], list(columns))
        _draw_cosine(cosine_axes, groups[key], list(columns), cosine_scale)
        _add_colour_bars(figure, accuracy_axes, cosine_axes, cosine_scale)
    style.add_legend(figure, _legend_entries(), 2)
    return figure


def _count_layers(rows: style.Rows) -> int:
    return 1 + max(row["layer"] for row in rows)


def _name_columns(rows: style.Rows) -> dict[str, str]:
    """The heading of each calibration's column; for replicates, with their number."""
    n_draws: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["n_draws"]):
        n_draws[row["calibration"]] = row["n_draws"]
    headings = {}
    for calibration in sorted(n_draws):
        note = f"\n(mean of {n_draws[calibration]})" if n_draws[calibration] > 1 else ""
        headings[calibration] = calibration + note
    return headings


def _set_up_map(axes: Axes, depth: int, headings: list[str]) -> None:
    style.set_matrix_axes(axes, len(headings), [str(layer) for layer in range(depth)])
    style.set_slanted_names(axes, range(len(headings)), headings)
    axes.set_ylabel("layer (0 = first)")


def _draw_accuracy(axes: Axes, rows: style.Rows, calibrations: list[str]) -> None:
    """One map of accuracy relevance.

    Undefined cells are hatched; cells whose interval includes 0 have a ring.
    """
    for row in rows:
        cell = (calibrations.index(row["calibration"]), row["layer"])
        if row["accuracy"] is not None:
            _draw_accuracy_cell(axes, cell, row)
        elif row["accuracy_reason"] is not None:
            corner = (cell[0] - 0.5, cell[1] - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, linewidth=0, **UNDEFINED_STYLE))


def _draw_accuracy_cell(axes: Axes, cell: Cell, row: dict[str, Any]) -> None:
    text = style.with_minus_signs(f"{row['accuracy']:.2f}")
    if text == "−0.00":
        text = "0.00"
    text += _format_spread(row["accuracy_spread"], "{:.2f}".format)
    square = draw_number_cell(axes, cell, row["accuracy"], text, ACCURACY, ACCURACY_SCALE)
    style.add_hint(square, describe_cell(row, "accuracy", 3))

    ci_low = row["accuracy_low"]
    if ci_low is not None and ci_low <= 0 <= row["accuracy_high"]:
        colour = choose_text_colour(ACCURACY(ACCURACY_SCALE(row["accuracy"])))
        ring: style.LineStyle = {
            "markersize": 2.8,
            "markerfacecolor": "none",
            "markeredgewidth": 0.7,
        }
        axes.plot(cell[0] + 0.40, cell[1] - 0.30, "o", color=colour, **ring)


def _draw_cosine(axes: Axes, rows: style.Rows, calibrations: list[str], scale: Normalize) -> None:
    """One map of cosine relevance."""
    for row in rows:
        if row["cosine"] is None:
            continue
        cell = (calibrations.index(row["calibration"]), row["layer"])
        text = _format_cosine(row["cosine"])
        text += _format_spread(row["cosine_spread"], _format_cosine)
        square = draw_number_cell(axes, cell, row["cosine"], text, COSINE, scale)
        style.add_hint(square, describe_cell(row, "cosine", 4))


def _format_cosine(value: float) -> str:
    """Three decimals: a cell has no room for more."""
    return f"{value:.3f}" if value >= 0.0005 else "<.001"


def _format_spread(spread: float | None, format_number: Callable[[float], str]) -> str:
    """A second line for the mean of replicates: the standard deviation between draws."""
    return "" if spread is None else f"\n±{format_number(spread)}"


def describe_cell(row: dict[str, Any], metric: str, digits: int) -> str:
    """The text for a cell under the pointer."""
    score = f"{row[metric] or 0:.{digits}f}"
    interval = ""
    if row[f"{metric}_low"] is not None:
        interval = f" [{row[f'{metric}_low']:.{digits}f}, {row[f'{metric}_high'] or 0:.{digits}f}]"
    n_samples = row[f"{metric}_samples"]
    return style.with_minus_signs(
        f"{row['calibration']}, layer {row['layer']}: {metric} {score}{interval}, n = {n_samples}"
    )


def _add_colour_bars(
    figure: Figure, accuracy_axes: Axes, cosine_axes: Axes, cosine_scale: Normalize
) -> None:
    """The scales of both maps, above them."""
    label = "accuracy lost (share above chance)"
    style.add_colour_bar(
        figure, accuracy_axes, ACCURACY_SCALE, ACCURACY, label, 0.9, aspect=30, extend="min"
    )
    note = ", log scale" if isinstance(cosine_scale, LogNorm) else ""
    label = f"1 − cos over the layer{note}"
    style.add_colour_bar(figure, cosine_axes, cosine_scale, COSINE, label, 0.9, aspect=30)


def _legend_entries() -> list[style.LegendEntry]:
    ring: style.LineStyle = {
        "marker": "o",
        "linestyle": "",
        "markersize": 3.5,
        "markerfacecolor": "none",
        "color": "black",
    }
    return [
        ("95 % interval includes 0", ring),
        ("undefined: base model at chance", Patch(**UNDEFINED_STYLE)),
    ]


def write_caption(rows: style.Rows) -> str:
    accuracy_counts = style.format_counts(row["accuracy_samples"] for row in rows)
    cosine_counts = style.format_counts(row["cosine_samples"] for row in rows)
    caption = (
        "Relevance of each layer of the base model for each calibration. Left: accuracy lost "
        "without the layer, as a share of the accuracy above chance (1 = all lost, 0 = nothing "
        f"lost, negative = better without the layer; calibration samples, {accuracy_counts} per "
        "cell). A ring marks cells whose 95 % bootstrap interval includes 0. Right: how far the "
        f"layer turns the residual stream ({cosine_counts} per cell). All panels of a side share "
        "one colour scale; on the left, it is the same in every report."
    )
    if max(row["n_draws"] for row in rows) > 1:
        caption += (
            " Cells of replicates show the mean and, below it, the standard deviation between "
            "draws; their rings are from Student's t."
        )
    return caption

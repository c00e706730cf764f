"""Angular distance against the start of a block, one curve per size [2403.17887, figure 1c]."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from lamina.relevance.statistics import Z95
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "How far blocks of each size turn the stream"
POSITION = 31
FOLDED = True
TABLES = ("activations", "models")
QUERIES = ("which_runs_barely_turn_the_stream",)
# Without the yellow end, which is invisible on white.
COLOURS = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.88, 256)))
MINIMUM_STYLE: style.LineStyle = {
    "color": "black",
    "linewidth": 1.2,
    "marker": "o",
    "markersize": 3,
}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and calibration, one curve per number of layers in the block."""
    groups = group_rows(rows, "model", "calibration")
    figure, panels = style.make_panels(len(groups), 3.6, 3.3, 3)
    largest_size = max(row["span"] for row in rows)
    scale = Normalize(1, max(2, largest_size))
    for axes, ((model, calibration), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_panel(axes, panel_rows, scale)
        axes.set_title(theme.format_title(model, calibration))

    bar = style.add_colour_bar(figure, panels, scale, COLOURS, "layers in the block (n)", 0.5)
    style.set_integer_ticks(bar.ax)
    style.add_legend(figure, [("minimum of each curve", MINIMUM_STYLE)])
    return figure


def _draw_panel(axes: Axes, rows: style.Rows, scale: Normalize) -> None:
    minima = []
    for (size,), curve in group_rows(rows, "span").items():
        _draw_curve(axes, curve, COLOURS(scale(size)))
        minima.append(min(curve, key=lambda row: row["angle"]))
    starts = [row["layer"] for row in minima]
    angles = [row["angle"] for row in minima]
    axes.plot(starts, angles, zorder=5, **MINIMUM_STYLE)
    style.add_hints(axes, [(row["layer"], row["angle"], _describe(row)) for row in minima])
    axes.set(xlabel="first layer of the block", ylabel="angular distance (1 = opposite)")
    axes.set_ylim(bottom=0)
    style.set_integer_ticks(axes)


def _draw_curve(axes: Axes, rows: style.Rows, colour: tuple[float, ...]) -> None:
    """The distances of one size with the band of their 95 % intervals."""
    starts = [row["layer"] for row in rows]
    angles = np.array([row["angle"] for row in rows])
    half_widths = np.array([style.compute_half_width(row["stderr"]) for row in rows])
    axes.plot(starts, angles, color=colour, linewidth=1)
    axes.fill_between(
        starts, angles - half_widths, angles + half_widths, color=colour, alpha=0.2, linewidth=0
    )


def _describe(row: dict[str, Any]) -> str:
    """The minimum of a curve, as text under the pointer."""
    interval = "" if row["stderr"] is None else f" ± {Z95 * row['stderr']:.3f}"
    last_layer = row["layer"] + row["span"] - 1
    return (
        f"n = {row['span']}, layers {row['layer']} to {last_layer}: {row['angle']:.3f}{interval}, "
        f"{row['n_samples']} samples"
    )


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Angle between the residual streams that enter and leave a block of n layers, at the last "
        "token, divided by π, against the first layer of the block: mean over calibration samples "
        f"({sample_counts} per panel) with its 95 % band. Black: the minimum of each curve, which "
        "is the block that block pruning removes. The lowest curve is n = 1."
    )

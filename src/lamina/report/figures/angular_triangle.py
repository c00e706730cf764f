"""Angular distance over every run of layers: block pruning chooses its run from this triangle."""

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "Which runs of layers barely turn the stream"
PLACE = 30
TABLES = ("activations", "models")
QUERIES = ("which_runs_barely_turn_the_stream",)
COLOURS = LinearSegmentedColormap.from_list(
    "angle", ["#fffbe6", "#f2c45a", "#b5651d", "#5a2a27", "#1c0f13"]
)

DOT: dict[str, Any] = {"marker": "o", "linestyle": ""}
LEAST = DOT | dict(markersize=4.5, color="#0072B2", markeredgecolor="white", markeredgewidth=0.8)
ALIKE = DOT | dict(markersize=3.2, color="white", markeredgecolor="black", markeredgewidth=0.6)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Rows are spans, columns start layers; one panel per model and calibration, one colour scale."""
    groups = style.grouped(data, "model", "calibration")
    depth = max(row["span"] for row in data)
    figure, grid = style.panels(len(groups), 3.6, 3.3 if depth <= 16 else 3.7, 3)
    scale = Normalize(0, max(row["angle"] for row in data))
    for axes, ((model, calibration), chosen) in zip(grid, groups.items(), strict=True):
        size = max(row["span"] for row in chosen)
        angle, error = np.full((size, size), np.nan), np.zeros((size, size))
        for row in chosen:
            angle[row["span"] - 1, row["layer"]] = row["angle"]
            error[row["span"] - 1, row["layer"]] = row["stderr"] or 0
        edges = (-0.5, size - 0.5, 0.5, size + 0.5)
        axes.imshow(
            angle,
            extent=edges,
            origin="lower",
            aspect="auto",
            cmap=COLOURS,
            norm=scale,
            interpolation="none",
        )
        texts = {}
        for span in (span for span in range(1, size + 1) if np.isfinite(angle[span - 1]).any()):
            start = int(np.nanargmin(angle[span - 1]))
            reach = Z95 * np.hypot(error[span - 1], error[span - 1, start])
            for other in (
                np.flatnonzero(angle[span - 1] - angle[span - 1, start] <= reach)
                if size <= 16
                else ()
            ):
                axes.plot(other, span, **ALIKE)
            axes.plot(start, span, **LEAST)
            if (span - 1) % max(1, round(size / 12)) == 0:
                texts[span] = f"{angle[span - 1, start]:.3f} ± {Z95 * error[span - 1, start]:.3f}"
        right = axes.secondary_yaxis("right")
        right.set_yticks(list(texts), list(texts.values()), fontsize=6)
        right.spines["right"].set_visible(False)
        axes.set_title(theme.title(model, calibration))
        axes.set(xlabel="first removed layer", ylabel="layers in the run (n)")
        axes.grid(False)
        for axis in "xy":
            style.whole_numbers(axes, axis)
    style.colour_bar(
        figure, grid, scale, COLOURS, "angular distance at the last token (1 = opposite)", 0.5
    )
    marks = [("minimum of the row", LEAST), ("not distinguishable from it (95 %)", ALIKE)]
    style.legend_below(figure, marks if depth <= 16 else marks[:1], 2)
    return figure


def caption(data: style.Rows) -> str:
    return (
        "Angle between the residual stream entering a run of n layers and the one leaving it, at the last real "
        f"token, divided by π; mean over calibration samples ({style.counts([row['n_samples'] for row in data])} per "
        "panel). Blue: the run that block pruning removes for each n, with its angle and 95 % interval at the right. "
        "White dots: runs whose angle is within the 95 % interval of the difference, taken as if independent (not "
        "drawn above 16 layers). One colour scale for all panels."
    )

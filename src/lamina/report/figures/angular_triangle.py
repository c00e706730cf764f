"""Angular distance over every run of layers: block pruning chooses its run from this triangle."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "Which runs of layers barely turn the stream"
PLACE = 30
TABLES = ("activations", "models")
ABOUT = (
    "Angle between the stream entering a run of n layers and the one leaving it, at the last token, divided by π. The "
    "blue dot is the run that block pruning removes for each n; its angle and 95 % interval stand at the right."
)

QUERIES = ("which_runs_barely_turn_the_stream",)
COLOURS = LinearSegmentedColormap.from_list("angle", ["#fffbe6", "#f2c45a", "#b5651d", "#5a2a27", "#1c0f13"])


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Rows are spans, columns start layers; one panel per model and calibration, one colour scale."""
    groups = sorted({(row["model"], row["calibration"]) for row in data})
    depth = max(row["span"] for row in data)
    figure, grid = style.panels(len(groups), 3.6, 3.3 if depth <= 16 else 3.7, 3)
    scale = Normalize(0, max(row["angle"] for row in data))
    for axes, (model, calibration) in zip(grid, groups, strict=True):
        chosen = [row for row in data if (row["model"], row["calibration"]) == (model, calibration)]
        size = max(row["span"] for row in chosen)
        angle, error = np.full((size, size), np.nan), np.zeros((size, size))
        for row in chosen:
            angle[row["span"] - 1, row["layer"]] = row["angle"]
            error[row["span"] - 1, row["layer"]] = row["stderr"] or 0
        edges = (-0.5, size - 0.5, 0.5, size + 0.5)
        axes.imshow(angle, extent=edges, origin="lower", aspect="auto", cmap=COLOURS, norm=scale, interpolation="none")
        small = size <= 16
        for span in range(1, size + 1):
            if not np.isfinite(angle[span - 1]).any():
                continue
            start = int(np.nanargmin(angle[span - 1]))
            reach = Z95 * np.hypot(error[span - 1], error[span - 1, start])
            for other in np.flatnonzero(angle[span - 1] - angle[span - 1, start] <= reach) if small else ():
                if other != start:
                    axes.plot(
                        other,
                        span,
                        "o",
                        markersize=3.2,
                        color="white",
                        markeredgecolor="black",
                        markeredgewidth=0.6,
                    )
            axes.plot(
                start,
                span,
                "o",
                markersize=4.5 if small else 3.2,
                color="#0072B2",
                markeredgecolor="white",
                markeredgewidth=0.8,
            )
        label_minima(axes, angle, error)
        axes.set_title(theme.title(model, calibration))
        axes.set(xlabel="first removed layer", ylabel="layers in the run (n)")
        axes.grid(False)
        for axis in "xy":
            style.whole_numbers(axes, axis)
    bar = figure.colorbar(ScalarMappable(scale, COLOURS), ax=grid, location="top", shrink=0.5, aspect=40, pad=0.02)
    bar.set_label("angular distance at the last token (1 = opposite)")
    handles = [
        Line2D([], [], marker="o", linestyle="", color="#0072B2", markeredgecolor="white", markersize=5.5),
        Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor="black", markersize=4),
    ]
    labels = ["minimum of the row", "not distinguishable from it (95 %)"]
    drawn = 2 if depth <= 16 else 1
    style.legend_below(figure, handles[:drawn], labels[:drawn], 2)
    return figure


def label_minima(axes: Axes, angle: np.ndarray, error: np.ndarray) -> None:
    """Write the minimum of about a dozen rows, with half its 95 % interval, at the right edge."""
    size = len(angle)
    step = max(1, round(size / 12))
    spans = [span for span in range(1, size + 1, step) if np.isfinite(angle[span - 1]).any()]
    texts = []
    for span in spans:
        start = int(np.nanargmin(angle[span - 1]))
        texts.append(f"{angle[span - 1, start]:.3f} ± {Z95 * error[span - 1, start]:.3f}")
    right = axes.secondary_yaxis("right")
    right.set_yticks(spans, texts, fontsize=6)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "Angle between the residual stream entering a run of n layers and the one leaving it, at the last real "
        f"token, divided by π; mean over calibration samples ({style.counts([row['n_samples'] for row in data])} per "
        "panel). Blue: the run that block pruning removes for each n, with its angle and 95 % interval at the right. "
        "White dots: runs whose angle is within the 95 % interval of the difference, taken as if independent (not "
        "drawn above 16 layers). One colour scale for all panels."
    )

"""Angular distance over every run of layers: block pruning chooses its run from this triangle."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from lamina.relevance.statistics import Z95
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "Which runs of layers barely turn the stream"
POSITION = 30
TABLES = ("activations", "models")
QUERIES = ("which_runs_barely_turn_the_stream",)
MAX_MARKED_DEPTH = 16  # in deeper models, dots of all indistinguishable runs would hide the colours
COLOURS = LinearSegmentedColormap.from_list(
    "angle", ["#fffbe6", "#f2c45a", "#b5651d", "#5a2a27", "#1c0f13"]
)
MINIMUM_STYLE: style.LineStyle = {
    "marker": "o",
    "linestyle": "",
    "markersize": 4.5,
    "color": "#0072B2",
    "markeredgecolor": "white",
    "markeredgewidth": 0.8,
}
INDISTINGUISHABLE_STYLE: style.LineStyle = {
    "marker": "o",
    "linestyle": "",
    "markersize": 3.2,
    "color": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.6,
}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and calibration: rows are spans, columns are first layers."""
    groups = group_rows(rows, "model", "calibration")
    largest_depth = max(row["span"] for row in rows)
    is_marked = largest_depth <= MAX_MARKED_DEPTH
    figure, panels = style.make_panels(len(groups), 3.6, 3.3 if is_marked else 3.7, 3)
    scale = Normalize(0, max(row["angle"] for row in rows))
    for axes, ((model, calibration), panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_triangle(axes, Triangle(panel_rows), scale)
        axes.set_title(theme.format_title(model, calibration))

    label = "angular distance at the last token (1 = opposite)"
    style.add_colour_bar(figure, panels, scale, COLOURS, label, 0.5)
    legend_entries = [("minimum of the row", MINIMUM_STYLE)]
    if is_marked:
        legend_entries.append(("not distinguishable from it (95 %)", INDISTINGUISHABLE_STYLE))
    style.add_legend(figure, legend_entries, 2)
    return figure


class Triangle:
    """Angles and their standard errors, (depth, depth).

    Row n - 1 has the runs of n layers, by first layer.
    """

    def __init__(self, rows: style.Rows) -> None:
        self.depth = max(row["span"] for row in rows)
        self.angles = np.full((self.depth, self.depth), np.nan)
        self.errors = np.zeros((self.depth, self.depth))
        for row in rows:
            self.angles[row["span"] - 1, row["layer"]] = row["angle"]
            self.errors[row["span"] - 1, row["layer"]] = row["stderr"] or 0

    def spans(self) -> list[int]:
        """The numbers of layers n with an angle."""
        return [n for n in range(1, self.depth + 1) if np.isfinite(self.angles[n - 1]).any()]

    def best_start(self, span: int) -> int:
        """The first layer of the run of `span` layers with the least angle."""
        return int(np.nanargmin(self.angles[span - 1]))

    def indistinguishable_starts(self, span: int) -> np.ndarray:
        """First layers of the runs whose angle is not significantly above the least one.

        The run with the least angle is among them.
        """
        start = self.best_start(span)
        half_widths = Z95 * np.hypot(self.errors[span - 1], self.errors[span - 1, start])
        differences = self.angles[span - 1] - self.angles[span - 1, start]
        return np.flatnonzero(differences <= half_widths)

    def format_least(self, span: int) -> str:
        """The least angle of a span with its 95 % interval."""
        start = self.best_start(span)
        half_width = Z95 * self.errors[span - 1, start]
        return f"{self.angles[span - 1, start]:.3f} ± {half_width:.3f}"


def _draw_triangle(axes: Axes, triangle: Triangle, scale: Normalize) -> None:
    depth = triangle.depth
    axes.imshow(
        triangle.angles,
        extent=(-0.5, depth - 0.5, 0.5, depth + 0.5),
        origin="lower",
        aspect="auto",
        cmap=COLOURS,
        norm=scale,
        interpolation="none",
    )
    for span in triangle.spans():
        if depth <= MAX_MARKED_DEPTH:
            for start in triangle.indistinguishable_starts(span):
                axes.plot(start, span, **INDISTINGUISHABLE_STYLE)
        axes.plot(triangle.best_start(span), span, **MINIMUM_STYLE)

    rows_per_text = max(1, round(depth / 12))
    labelled_spans = [span for span in triangle.spans() if (span - 1) % rows_per_text == 0]
    texts = [triangle.format_least(span) for span in labelled_spans]
    right_axis = axes.secondary_yaxis("right")
    right_axis.set_yticks(labelled_spans, texts, fontsize=6)
    right_axis.spines["right"].set_visible(False)
    axes.set(xlabel="first removed layer", ylabel="layers in the run (n)")
    axes.grid(False)
    style.set_integer_ticks(axes, "x")
    style.set_integer_ticks(axes, "y")


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Angle between the residual streams that enter and leave a run of n layers, at the last "
        f"token, divided by π: mean over calibration samples ({sample_counts} per panel). Blue: "
        "the run that block pruning removes for each n; its angle and 95 % interval are on the "
        "right. White dots: runs whose angle is not significantly larger, tested as if both angles "
        f"were independent (not drawn for more than {MAX_MARKED_DEPTH} layers). All panels share "
        "one colour scale."
    )

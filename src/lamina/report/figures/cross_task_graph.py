"""Which calibration can replace which: good and poor proxies as arrows between tasks."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "Which calibration can stand in for which"
PLACE = 61
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
ABOUT = (
    "An arrow from A to B: plans made for A keep at least 90 % (good) or at most 10 % (poor) of what plans made for B "
    "keep on B's task, above chance. Dashed: the 95 % interval reaches over the threshold."
)

QUERIES = ("which_calibration_can_stand_in",)
COLOURS = {"good": "#0072B2", "poor": "#D55E00"}


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One graph per model and selector, at its largest size; nodes are calibrations, on a circle."""
    groups = theme.by_selector(data)
    names = sorted({row[end] for row in data for end in ("calibration", "own_calibration")})
    figure, grid = style.panels(len(groups), 4.2, 3.6, 3)
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        graph(axes, chosen, names)
        axes.set_title(theme.title(group[0], f"{group[1]}, {chosen[0]['removed']} removed"))
    handles = [
        Line2D([], [], color=COLOURS["good"], linewidth=2),
        Line2D([], [], color=COLOURS["poor"], linewidth=2),
        Line2D([], [], color=style.NEUTRAL, linewidth=1.2, linestyle="--"),
    ]
    labels = [
        "A → B: A's plan keeps ≥ 90 % of what B's own plan keeps",
        "≤ 10 %",
        "95 % interval holds the limit",
    ]
    style.legend_below(figure, handles, labels, 3)
    return figure


def graph(axes: Axes, data: list[dict[str, Any]], names: list[str]) -> None:
    """Nodes clockwise from the top; each arrow carries the share kept and half its 95 % interval, in percent."""
    turn = 2 * math.pi / len(names)
    spots = {name: (math.sin(turn * at), math.cos(turn * at)) for at, name in enumerate(names)}
    for row in (row for row in data if row["proxy"] in COLOURS):
        ends = spots[row["calibration"]], spots[row["own_calibration"]]
        arrow = FancyArrowPatch(
            *ends,
            connectionstyle="arc3,rad=0.16",
            arrowstyle="-|>,head_length=5,head_width=2.6",
            shrinkA=17,
            shrinkB=17,
            color=COLOURS[row["proxy"]],
            linewidth=1.7 if row["sure"] else 1.0,
            linestyle="-" if row["sure"] else "--",
        )
        axes.add_patch(arrow)
        if len(names) <= 8:
            error = row["kept_of_own_stderr"]
            reach = "" if error is None else f" ± {100 * Z95 * error:.0f}"
            axes.text(
                *beside(*ends),
                f"{100 * row['kept_of_own']:.0f}{reach} %".replace("-", "−"),
                fontsize=6,
                ha="center",
                va="center",
                color=COLOURS[row["proxy"]],
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )
    for name, (x, y) in spots.items():
        axes.text(x, y, name, ha="center", va="center", fontsize=7.5, bbox=NODE)
    axes.set(xlim=(-1.4, 1.4), ylim=(min(y for _, y in spots.values()) - 0.2, 1.2), aspect="equal")
    axes.set_axis_off()
    if not any(row["proxy"] in COLOURS for row in data):
        axes.text(0, 0, "no good and no poor proxy", ha="center", va="center", fontsize=8, color=style.NEUTRAL)


NODE = {"boxstyle": "round,pad=0.35", "facecolor": "#f2f2f2", "edgecolor": style.NEUTRAL, "linewidth": 0.8}


def beside(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """The place of a curved arrow's number: on the curve, nearer to its end, apart from the opposite arrow's number."""
    t, bend = 0.6, 0.16
    # The control point of arc3 is off the middle by `rad` times the chord, at right angles to it.
    middle = (start[0] + end[0]) / 2 + bend * (end[1] - start[1]), (start[1] + end[1]) / 2 - bend * (end[0] - start[0])
    x, y = ((1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c for a, b, c in zip(start, middle, end, strict=True))
    return x, y


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    between = sum(row["proxy"] == "between" for row in data)
    return (
        "An arrow from A to B: the plan made for A, tested on B's task, keeps at least 90 % or at most 10 % of what "
        "the plan made for B keeps there, counted from chance (percent ± half the 95 % interval, paired over test "
        f"documents, {style.counts([row['n_samples'] for row in data])}). Same selector, same size, no repair. "
        f"{between} of {len(data)} pairs lie between and have no arrow."
    )

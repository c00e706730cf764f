"""The gain from running each block of layers again: one column per first layer, rows by length."""

from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.figures.cells import choose_text_colour

TITLE = "What it gives to run layers again"
POSITION = 47
TABLES = ("searches", "models")
NEEDS = {"moving_selectors": 1}
QUERIES = ("what_running_layers_again_gives",)
FALSE_ALARMS = 0.05  # per map: probability that a block is marked although none gains
COLOURS = LinearSegmentedColormap.from_list(
    "change", ["#08519c", "#9ecae9", "#ffffff", "#fdc57f", "#b04a00"]
)
NOT_TRIED = "#e8e8e8"
BEST_STYLE: style.LineStyle = {"fill": False, "edgecolor": "black", "linewidth": 1.4}
GAIN_STYLE: style.LineStyle = {"marker": "o", "linestyle": "", "markersize": 3.5, "color": "black"}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per search, number of runs and damping; one colour scale for all."""
    groups = group_rows(rows, "model", "calibration", "selector", "times", "is_damped")
    longest = max(_count_layers(row) for row in rows)
    figure, panels = style.make_panels(len(groups), 4.2, 1.3 + 0.3 * longest, 3)
    scale = _scale_changes(rows)
    for axes, (key, panel_rows) in zip(panels, groups.items(), strict=True):
        model, calibration, selector, times, is_damped = key
        _draw_map(axes, panel_rows, scale)
        runs = f"{selector}: {times} runs{', damped' if is_damped else ''}"
        title = theme.format_title(model, f"{calibration}, {runs}")
        axes.set_title(f"{title}\n{_describe_best(panel_rows)}", fontsize=8)

    label = "lower loss than the base model  ◂    ▸  higher"
    style.add_colour_bar(figure, panels, scale, COLOURS, label, 0.6)
    best_block = Rectangle((0, 0), 1, 1, **BEST_STYLE)
    legend_entries: list[style.LegendEntry] = [
        ("best of its size", best_block),
        ("significant gain, corrected for all blocks tried", GAIN_STYLE),
    ]
    style.add_legend(figure, legend_entries, 2)
    return figure


def _scale_changes(rows: style.Rows) -> Normalize:
    """A scale symmetric about 0, up to the median size of a change: some blocks ruin the model."""
    sizes = sorted(abs(row["change"]) for row in rows)
    largest = sizes[len(sizes) // 2] or 1.0
    return Normalize(-largest, largest)


def is_gain(row: dict[str, Any]) -> bool:
    """Whether a block lowers the loss significantly, with Bonferroni's correction."""
    if not row["stderr"]:
        return False
    quantile = NormalDist().inv_cdf(FALSE_ALARMS / row["n_tried"])
    return bool(row["change"] / row["stderr"] < quantile)


def _draw_map(axes: Axes, rows: style.Rows, scale: Normalize) -> None:
    n_layers = 1 + max(row["last"] for row in rows)
    longest = max(_count_layers(row) for row in rows)
    changes = np.full((longest, n_layers), np.nan)
    for row in rows:
        x, y = row["first"], _count_layers(row)
        changes[y - 1, x] = row["change"]
        if is_gain(row):
            colour = choose_text_colour(COLOURS(scale(row["change"])))
            axes.plot(x, y, **GAIN_STYLE | {"color": colour})
        if row["held_back_change"] is not None:
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, zorder=3, **BEST_STYLE))
    axes.imshow(
        changes,
        extent=(-0.5, n_layers - 0.5, 0.5, longest + 0.5),
        origin="lower",
        aspect="auto",
        cmap=COLOURS,
        norm=scale,
        interpolation="none",
    )
    hints = [(row["first"], _count_layers(row), _describe_cell(row)) for row in rows]
    style.add_hints(axes, hints)
    axes.set(xlabel="first layer of the block", ylabel="layers in the block")
    axes.set_facecolor(NOT_TRIED)
    axes.grid(False)
    style.set_integer_ticks(axes, "x")
    style.set_integer_ticks(axes, "y")


def _count_layers(row: dict[str, Any]) -> int:
    return int(row["last"] - row["first"] + 1)


def _describe_cell(row: dict[str, Any]) -> str:
    """The text for a cell under the pointer."""
    change = style.format_interval(row["change"], row["stderr"])
    return f"{row['edit']}: {change}, n = {row['n_samples']}{_describe_second_measurement(row)}"


def _describe_best(rows: style.Rows) -> str:
    """The best block of a panel: its loss when it was chosen, and when it was measured again."""
    best = min(rows, key=lambda row: float(row["change"]))
    change = style.format_interval(best["change"], None)
    return f"best {best['edit']}: {change}{_describe_second_measurement(best)}"


def _describe_second_measurement(row: dict[str, Any]) -> str:
    """A winning block's gain on samples that did not choose it; empty for the others."""
    if row["held_back_change"] is None:
        return ""
    change = style.format_interval(row["held_back_change"], row["held_back_stderr"])
    return f"; measured again {change}, n = {row['n_held_back']}"


def write_caption(rows: style.Rows) -> str:
    tried_counts = sorted({row["n_tried"] for row in rows})
    tried = " to ".join(
        f"{count:,}" for count in dict.fromkeys((tried_counts[0], tried_counts[-1]))
    )
    counts = style.format_counts(row["n_samples"] for row in rows)
    held_back_counts = style.format_counts(row["n_held_back"] for row in rows)
    return (
        f"Change of the mean loss when a block of layers runs again ({tried} blocks tried per "
        f"search, {counts} samples). Dots: gains that are significant at "
        f"{100 * FALSE_ALARMS:.0f} % after Bonferroni's correction for all blocks of the search. "
        "Framed: the best block of each size. The best of many blocks looks better than it is, so "
        f"it was measured again on held-out samples ({held_back_counts}): trust that number. All "
        "panels share one colour scale, which ends at the median size of a change."
    )

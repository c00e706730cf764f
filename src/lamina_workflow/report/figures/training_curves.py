"""The course of healing: training and validation loss against the optimiser step."""

from typing import Any

import duckdb
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.relevance.statistics import Z95
from lamina.variant import describe_size
from lamina_workflow.report.answers import answer_question, group_rows
from lamina_workflow.report.figures import style

TITLE = "How healing went"
POSITION = 80
TABLES = ("training", "plans", "models")
QUERIES = ("how_healing_went",)
MAX_GROUPS = 8  # groups of consecutive steps; the mean loss of a group is one point of a line
KEPT_STYLE: style.LineStyle = {
    "marker": "*",
    "markersize": 10,
    "markeredgecolor": "black",
    "markeredgewidth": 0.6,
}


def read_rows(connection: duckdb.DuckDBPyConnection) -> style.Rows:
    """All curves except those of a healing's checkpoints, which are beginnings of its own curve."""
    rows = answer_question(connection, QUERIES[0])
    healings = {row["healing"] for row in rows}
    kept_epochs = {(row["healing"], row["epoch"]) for row in rows if row["chosen"]}
    checkpoints = set()
    for healing, epoch in kept_epochs:
        whole_healing = healing.removesuffix(f"-{epoch}")
        if whole_healing != healing and whole_healing in healings:
            checkpoints.add(healing)
    return [row for row in rows if row["healing"] not in checkpoints]


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration, size and healing, one line per selector and repair."""
    groups = group_rows(rows, "model", "calibration", "removed", "healing")
    figure, panels = style.make_panels(len(groups), 3.5, 2.7, 3)
    for axes, (group, panel_rows) in zip(panels, groups.items(), strict=True):
        model, calibration, removed, healing = group
        curves = group_rows(panel_rows, "selector", "repair")
        for (selector, repair), curve in curves.items():
            _draw_curve(axes, curve, theme.selector_styles[selector], repair)
        axes.set(xlabel="optimiser step", ylabel="loss (nats per token)")
        title = f"{calibration}, {describe_size(removed)}, {healing}"
        axes.set_title(theme.format_title(model, title))

    legend_entries = []
    for selector, repair in group_rows(rows, "selector", "repair"):
        name = selector if repair == "none" else f"{selector} + {repair}"
        marker = choose_marker(theme.selector_styles[selector], repair)
        legend_entries.append((name, {"linestyle": choose_dashes(repair), **marker}))
    legend_entries.append(("weights kept", {"color": style.NEUTRAL, "linestyle": "", **KEPT_STYLE}))
    style.add_legend(figure, legend_entries, 4)
    return figure


def choose_dashes(repair: str) -> str:
    """Solid without a patch, dashed with one."""
    return "-" if repair == "none" else "--"


def choose_marker(selector_style: style.LineStyle, repair: str) -> style.LineStyle:
    """The marker of a curve: that of its selector, open if a patch was applied first."""
    colour = selector_style["color"]
    return {
        "color": colour,
        "marker": selector_style["marker"],
        "markersize": 4.5,
        "markerfacecolor": colour if repair == "none" else "white",
    }


def _draw_curve(axes: Axes, rows: style.Rows, selector_style: style.LineStyle, repair: str) -> None:
    """Training loss as a line with the 95 % band of its means; validation loss as points."""
    colour = selector_style["color"]
    training_rows = [row for row in rows if row["loss"] is not None]
    steps, means, half_widths = _average_steps(training_rows)
    axes.plot(steps, means, linestyle=choose_dashes(repair), linewidth=1.2, color=colour)
    axes.fill_between(
        steps, means - half_widths, means + half_widths, alpha=0.18, linewidth=0, color=colour
    )
    validation_rows = [row for row in rows if row["validation_loss"] is not None]
    _draw_points(axes, validation_rows, choose_marker(selector_style, repair))
    kept_rows = [row for row in validation_rows if row["chosen"]]
    _draw_points(axes, kept_rows, {"color": colour, **KEPT_STYLE})


def _average_steps(rows: style.Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean steps, mean losses and half widths of their 95 % intervals, (groups,) each.

    A group consists of consecutive steps. The half width of a single step is 0.
    """
    losses = np.array([row["loss"] for row in rows])
    steps = np.array([row["step"] for row in rows])
    mean_steps = []
    mean_losses = []
    half_widths = []
    n_groups = min(MAX_GROUPS, len(rows))
    for group in np.array_split(np.arange(len(rows)), n_groups) if n_groups else []:
        mean_steps.append(steps[group].mean())
        mean_losses.append(losses[group].mean())
        half_width = 0.0
        if len(group) > 1:
            half_width = Z95 * losses[group].std(ddof=1) / np.sqrt(len(group))
        half_widths.append(half_width)
    return np.array(mean_steps), np.array(mean_losses), np.array(half_widths)


def _draw_points(axes: Axes, rows: style.Rows, marker: dict[str, Any]) -> None:
    """Validation losses."""
    steps = [row["step"] for row in rows]
    losses = [row["validation_loss"] for row in rows]
    axes.plot(steps, losses, linestyle="", **marker)


def write_caption(rows: style.Rows) -> str:
    curves = group_rows(rows, "model", "calibration", "selector", "removed", "repair", "healing")
    step_counts = []
    warmup_steps = []
    for curve in curves.values():
        step_counts.append(sum(row["loss"] is not None for row in curve))
        peak_row = max(curve, key=lambda row: row["learning_rate"] or 0)
        warmup_steps.append(peak_row["step"])
    warmup = style.format_counts(warmup_steps).removeprefix("n = ")
    return (
        "Healing of pruned (solid) and repaired (dashed) variants. Lines: mean training loss of up "
        f"to {MAX_GROUPS} groups of consecutive steps, with the 95 % interval of the mean "
        f"({style.format_counts(step_counts)} logged steps per line). The learning rate warms up "
        f"over {warmup} of these steps, at most a tenth. Points: loss on validation samples (open: "
        "repaired variants). Star: the weights that were kept."
    )

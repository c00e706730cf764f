"""How healing went: training and validation loss against the optimiser step."""

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "How healing went"
PLACE = 80
TABLES = ("training", "plans", "models")
ABOUT = (
    "Training loss (means of consecutive steps with the 95 % interval of the mean) and validation loss of each "
    "healing; the star marks the weights that were kept."
)

QUERIES = ("how_healing_went",)
BINS = 8


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration, size and healing; one line per selector, dashed if a patch was applied first."""
    groups = list(dict.fromkeys((row["model"], row["calibration"], row["removed"], row["healing"]) for row in data))
    styles = theme.selectors
    figure, grid = style.panels(len(groups), 3.5, 2.7, 3)
    for axes, group in zip(grid, groups, strict=True):
        keys = ("model", "calibration", "removed", "healing")
        panel(axes, [row for row in data if tuple(row[key] for key in keys) == group], styles)
        model, calibration, removed, healing = group
        axes.set_title(theme.title(model, f"{calibration}, {removed} removed, {healing}"))
    runs = list(dict.fromkeys((row["selector"], row["repair"]) for row in data))
    handles = [
        Line2D(
            [],
            [],
            color=styles[selector]["color"],
            linestyle=dash(repair),
            marker=styles[selector]["marker"],
            markersize=4.5,
            markerfacecolor=styles[selector]["color"] if repair == "none" else "white",
        )
        for selector, repair in runs
    ]
    labels = [selector if repair == "none" else f"{selector} + {repair}" for selector, repair in runs]
    handles += [
        Line2D([], [], color=style.NEUTRAL, marker="*", linestyle="", markersize=10, markeredgecolor="black"),
    ]
    style.legend_below(figure, handles, [*labels, "weights kept"], 4)
    return figure


def dash(repair: str) -> Literal["-", "--"]:
    """Healing of a patched model is dashed."""
    return "-" if repair == "none" else "--"


def panel(axes: Axes, data: list[dict[str, Any]], styles: dict[str, dict[str, Any]]) -> None:
    """Training loss as means of consecutive steps with the 95 % band of the mean; validation as points."""
    for selector, repair in dict.fromkeys((row["selector"], row["repair"]) for row in data):
        curve = [row for row in data if (row["selector"], row["repair"]) == (selector, repair)]
        look = dict(color=styles[selector]["color"])
        trained = [row for row in curve if row["loss"] is not None]
        parts = [part for part in np.array_split(np.arange(len(trained)), min(BINS, len(trained) or 1)) if len(part)]
        losses = [np.array([trained[place]["loss"] for place in part]) for part in parts]
        x = [float(np.mean([trained[place]["step"] for place in part])) for part in parts]
        mean = np.array([part.mean() for part in losses])
        reach = np.array([Z95 * part.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else 0.0 for part in losses])
        axes.plot(x, mean, linestyle=dash(repair), linewidth=1.2, **look)
        axes.fill_between(x, mean - reach, mean + reach, alpha=0.18, linewidth=0, **look)
        checked = [row for row in curve if row["validation_loss"] is not None]
        points = dict(linestyle="", markersize=4.5, marker=styles[selector]["marker"])
        inside = styles[selector]["color"] if repair == "none" else "white"
        validation = [row["validation_loss"] for row in checked]
        axes.plot([row["step"] for row in checked], validation, markerfacecolor=inside, **points, **look)
        kept = [row for row in checked if row["chosen"]]
        axes.plot(
            [row["step"] for row in kept],
            [row["validation_loss"] for row in kept],
            "*",
            markersize=10,
            markeredgecolor="black",
            markeredgewidth=0.6,
            **look,
        )
    axes.set(xlabel="optimiser step", ylabel="loss (nats per token)")


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of steps."""
    lines = style.grouped(data, "model", "calibration", "selector", "removed", "repair", "healing").values()
    steps = [sum(row["loss"] is not None for row in line) for line in lines]
    return (
        f"Healing of pruned (solid) and patched (dashed) variants. Lines: mean training loss of up to {BINS} groups "
        f"of consecutive steps, with the 95 % interval of the mean ({style.counts(steps)} "
        "logged steps per line). Points: loss on validation samples (open: patched); the star marks the weights that "
        "were kept."
    )

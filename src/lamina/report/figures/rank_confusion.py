"""The place of a unit by accuracy against its place by every other metric: confusion of places, over tasks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lamina.report.figures import style

TITLE = "How metrics agree with accuracy"
PLACE = 25
TABLES = ("relevance", "agreements", "models")
ABOUT = (
    "How often the unit in one place by accuracy relevance is in another by a second metric, over tasks, with the "
    "correlation within tasks and the misranked share."
)

QUERIES = ("where_two_metrics_place_layers",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, kind of unit and metric; dark where many tasks have a unit at these two places."""
    groups = style.grouped(data, "model", "component", "metric")
    figure, grid = style.panels(len(groups), 2.6, 3.1, 4)
    for axes, ((model, kind, metric), cells) in zip(grid, groups.items(), strict=True):
        n = cells[0]["n_units"]
        confusion = np.zeros((n, n), dtype=int)
        for cell in cells:
            confusion[cell["place_by_accuracy"] - 1, cell["place_by_metric"] - 1] = cell["count"]
        axes.imshow(
            confusion.T, origin="lower", cmap="Greys", interpolation="none", extent=(0.5, n + 0.5, 0.5, n + 0.5), vmin=0
        )
        axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#0072B2", linewidth=0.9, linestyle="--")
        name = metric if kind == "layer" else f"{metric} ({kind})"
        axes.set_title(f"{theme.title(model, name)}\n{words(cells[0])}")
        axes.set(xlabel="place by accuracy", ylabel="place by the metric")
        for axis in "xy":
            style.whole_numbers(axes, axis)
    return figure


def words(numbers: Mapping[str, Any]) -> str:
    """Rank correlation within tasks and share of misranked units; an interval over half of all says nothing."""
    rho = "ρ = {within:.2f} ({within_low:.2f} to {within_high:.2f})" if numbers["within"] is not None else "ρ unknown"
    wide = numbers["misranked_high"] - numbers["misranked_low"] > 0.5
    share = "misranked {misranked:.0%} [{misranked_low:.0%}, {misranked_high:.0%}]"
    return f"{rho}\n{'misranked: too few questions' if wide else share}".format_map(numbers).replace("-", "−")


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of tasks and samples."""
    most = max(row["n_calibrations"] for row in data)
    samples = style.counts([row["n_samples"] for row in data])
    return (
        "Place of a unit of the base model by accuracy relevance (1 = least relevant) against its place by another "
        f"metric, counted over {most} calibration{'s' if most > 1 else ''} at most ({samples} of all "
        "together), without the first and last two layers of eight or more. Dashed: agreement. ρ: Spearman's "
        "correlation within a task, over all its units, which is what a selector goes by: mean over the tasks, least "
        "and most of them. Misranked: units in another place; in brackets what surely is (95 %) and what may be, given "
        "which scores differ beyond the noise of the samples."
    )

"""How the result of a task falls as layers go, for each selector."""

from math import isfinite, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lamina.relevance.statistics import Z95
from lamina.report.figures import style

TITLE = "What pruning costs"
PLACE = 40
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
QUERIES = ("what_pruning_costs",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration and own task, one line per selector, 95 % error bars."""
    groups = style.grouped(data, "model", "calibration", "task")
    styles = theme.selectors
    figure, grid = style.panels(len(groups), 3.5, 2.7, 3)
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        panel(axes, chosen, styles)
        axes.set_title(theme.task_title(group, groups))
    draws = {
        row["selector"]: row["n_draws"] for row in sorted(data, key=lambda row: row["n_draws"] > 1)
    }
    named = [
        (f"{name} (mean of {draws[name]})" if draws[name] > 1 else name, look | {"markersize": 4.5})
        for name, look in styles.items()
        if name in draws
    ]
    guessing = {"color": style.NEUTRAL, "linestyle": (0, (1, 1.5))}
    style.legend_below(
        figure, [*named, ("base model, 95 %", Patch(color="#d9d9d9")), ("guessing", guessing)], 4
    )
    return figure


def panel(axes: Axes, data: style.Rows, styles: dict[str, style.Look]) -> None:
    """Lines from the base model on; selectors are shifted sideways a little, so that error bars do not hide each
    other.
    """
    first = data[0]
    base, reach = first["base_value"], style.reach(first["base_stderr"])
    if isfinite(reach):
        axes.axhspan(base - reach, base + reach, color="#d9d9d9", linewidth=0)
    axes.axhline(base, color="#999999", linewidth=0.8)
    if first["chance"] is not None:
        axes.axhline(first["chance"], color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1)
    names = [name for name in styles if any(row["selector"] == name for row in data)]
    sizes = sorted({row["removed"] for row in data})
    gap = min([1, *(after - before for before, after in zip(sizes, sizes[1:], strict=False))])
    for place, name in enumerate(names):
        points = [row for row in data if row["selector"] == name]
        shift = (place - (len(names) - 1) / 2) * 0.07 * gap
        x = [0.0] + [row["removed"] + shift for row in points]
        y = [base] + [row["value"] for row in points]
        error = [0.0] + [nan if row["reach"] is None else row["reach"] for row in points]
        axes.errorbar(
            x, y, error, markersize=4.5, linewidth=1.3, elinewidth=0.9, capsize=1.8, **styles[name]
        )
        said = (f"{name}, {row['removed']} removed: {reading(row, row['reach'])}" for row in points)
        style.hints(axes, zip(x[1:], y[1:], said, strict=True))
    axes.set_xlim(-0.25 * gap, max(sizes) + 0.35 * gap)
    axes.set_xticks([0, *sizes])
    axes.set_xlabel("units removed")
    style.metric_scale(
        axes, first["metric"], [first["base_value"], *(row["value"] for row in data)]
    )


def reading(row: dict[str, Any], reach: float | None) -> str:
    """A row's number and the reach of its interval, as they are said under the pointer."""
    stderr = None if reach is None or not isfinite(reach) else reach / Z95
    return f"{style.interval(row['value'], stderr)} {row['metric']}, n = {row['n_samples']}"


def caption(data: style.Rows) -> str:
    draws = [row["n_draws"] for row in data if row["n_draws"] > 1]
    means = (
        f" Means of replicates ({style.counts(draws)} draws) have bars of the draws (Student's t over those of the "
        "selector and of the calibration, not over their products) and of the documents."
    )
    return (
        "The calibration's own benchmark task against the number of units removed, before any repair. Points are "
        f"test-set values with 95 % intervals ({style.counts([row['n_samples'] for row in data])} test documents per "
        "point); selectors are shifted sideways a little. Grey band: base model. Dotted: guessing, where known. "
        "acc_norm is accuracy with log-likelihoods divided by the length of the choice; accuracies are drawn from 0 "
        "to 1. Variants share their test documents, so differences between them are surer than the bars suggest: the "
        "table of variants has paired intervals."
    ) + (means if draws else "")

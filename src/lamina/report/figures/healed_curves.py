"""Variants with and without healing as layers go: tasks, and loss of text relative to guessing.

See arXiv 2403.17887, fig. 2, 3.
"""

from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lamina.report.figures import style

TITLE = "What healing keeps as layers go"
PLACE = 66
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
ABOUT = (
    "Benchmarks against the share of layers removed, healed (filled, solid) and not (hollow, dotted), one colour per "
    "selector, with 95 % intervals. Loss of text is divided by the log of the vocabulary: 1 is guessing."
)

QUERIES = ("what_healing_keeps",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model, calibration and benchmark."""
    groups = style.grouped(data, "model", "calibration", "task")
    styles = theme.selectors
    healings = sorted({row["healing"] for row in data} - {"none"})
    figure, grid = style.panels(len(groups), 3.3, 2.7, 4)
    for axes, (group, chosen) in zip(grid, groups.items(), strict=True):
        panel(axes, chosen, styles, healings)
        axes.set_title(theme.title(group[0], f"{group[1]} on {group[2]}"))
    names = [name for name in styles if any(row["selector"] == name for row in data)]
    handles: list[Any] = [Patch(facecolor=styles[name]["color"]) for name in names]
    handles += [Line2D([], [], markersize=4.5, **look("black", healing, healings)) for healing in ["none", *healings]]
    handles += [Patch(color="#d9d9d9"), Line2D([], [], color=style.NEUTRAL, linestyle=(0, (1, 1.5)))]
    labels = [*names, "not healed", *healings, "base model, 95 %", "guessing"]
    style.legend_below(figure, handles, labels, 6)
    return figure


def panel(axes: Axes, data: list[dict[str, Any]], styles: dict[str, dict[str, Any]], healings: list[str]) -> None:
    """Lines from the base model on, shifted sideways a little."""
    first, loss = data[0], data[0]["metric"] == "nll_per_log_vocabulary"
    base, reach = first["base_value"], style.reach(first["base_stderr"])
    if isfinite(reach):
        axes.axhspan(base - reach, base + reach, color="#d9d9d9", linewidth=0)
    axes.axhline(base, color="#999999", linewidth=0.8)
    chance = 1.0 if loss else first["chance"]
    if chance is not None:
        axes.axhline(chance, color=style.NEUTRAL, linestyle=(0, (1, 1.5)), linewidth=1)
    ways = list(dict.fromkeys((row["selector"], row["healing"]) for row in data))
    widest = max(row["share"] for row in data)
    for place, (selector, healing) in enumerate(ways):
        points = [row for row in data if (row["selector"], row["healing"]) == (selector, healing)]
        shift = (place - (len(ways) - 1) / 2) * 0.012 * widest
        x = [0.0] + [100 * (row["share"] + shift) for row in points]
        y = [base] + [row["value"] for row in points]
        error = [0.0] + [style.reach(row["stderr"]) for row in points]
        form = look(styles[selector]["color"], healing, healings)
        axes.errorbar(x, y, error, markersize=4.5, linewidth=1.3, elinewidth=0.9, capsize=1.8, **form)
    axes.set_xlabel("layers removed (%)")
    if loss:
        axes.set_ylabel("loss / log V (1 = guessing)")
        axes.set_ylim(0, 1.08 * max(1.0, *(row["value"] for row in data)))
    else:
        style.metric_scale(axes, first["metric"], [row["value"] for row in data])


def look(colour: str, healing: str, healings: list[str]) -> dict[str, Any]:
    """The colour shows the selector; dashes, markers and filling show the healing. Unhealed is dotted and hollow."""
    if healing == "none":
        return {"color": colour, "linestyle": ":", "marker": "o", "markerfacecolor": "white"}
    place = healings.index(healing)
    return {"color": colour, "linestyle": style.DASHES[place], "marker": style.MARKERS[place]}


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "The calibration's own task and the loss of text against the share of layers removed, without a repair: healed "
        "(filled) and not (hollow). Points are test-set values with 95 % intervals "
        f"({style.counts([row['n_samples'] for row in data])} test documents per point). Loss is the mean negative "
        "log-likelihood per token divided by the log of the vocabulary, so that models compare: 1 (dotted) is "
        "guessing. Grey band: base model."
    )

"""A smaller model's accuracy on its own task against its perplexity of general text, by selector and repair."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lamina.report.figures import style

TITLE = "The task against everything else"
PLACE = 44
LEAD = 2
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models", "efficiency")
NEEDS = {"tasks": 1, "texts": 1}
QUERIES = ("which_pairs_nothing_beats",)

FILLS: Any = ("none", "full", "left", "bottom", "right", "top")  # of markers, by repair
FAR = 30  # times the base model's perplexity: a ruin, whose place on the axis says no more


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and size; colours and markers are selectors, and how a marker is filled is its repair."""
    sizes = style.grouped(data, "model", "removed", "layers")
    lines = theme.selectors
    repairs = style.repairs(data)
    figure, grid = style.panels(len(sizes), 3.6, 3.2, 3, sharey=True)
    for place, (axes, ((model, removed, layers), chosen)) in enumerate(
        zip(grid, sizes.items(), strict=True)
    ):
        panel(axes, chosen, lines, repairs)
        kind = "" if layers == removed else " sub-layers"
        axes.set_title(theme.title(model, f"{removed}{kind} removed"))
        if place % 3 == 0:
            axes.set_ylabel("own tasks (share correct)")
    used = {row["selector"] for row in data}
    # Replicates look alike, and the first one stands for them.
    shown = list({id(lines[name]): name for name in reversed(lines) if name in used}.values())[::-1]
    entries = [(name, mark(lines[name], 1)) for name in shown]
    black = {"color": "black", "marker": "o"}
    entries += [
        (style.repair_name(*pair), mark(black, place)) for place, pair in enumerate(repairs)
    ]
    entries.append(("beaten by none", {"color": style.NEUTRAL, "linewidth": 0.9}))
    entries.append(("base model", {"color": "#999999", "linestyle": "--"}))
    style.legend_below(figure, entries, 6)
    return figure


def mark(line: dict[str, Any], place: int) -> dict[str, Any]:
    """A marker of a selector, filled as the repair with this number is; the first is hollow."""
    shape = {"color": line["color"], "marker": line["marker"], "linestyle": "", "markersize": 6.5}
    return shape | {"fillstyle": FILLS[place % len(FILLS)], "markerfacecoloralt": "white"}


def panel(
    axes: Axes, data: style.Rows, lines: dict[str, style.Look], repairs: list[tuple[str, str]]
) -> None:
    """Points with both intervals, the base model's two numbers, and the frontier.

    A point further out than FAR stands at the edge, with an arrow.
    """
    edge = FAR * data[0]["perplexity_base"]
    for row in data:
        inside = row["perplexity"] < edge
        axes.errorbar(
            row["perplexity"] if inside else edge,
            row["accuracy"],
            style.reach(row["accuracy_stderr"]),
            style.reach(row["perplexity_stderr"]) if inside else [[0], [0.25 * edge]],
            xlolims=not inside,
            elinewidth=0.8,
            **mark(lines[row["selector"]], repairs.index((row["repair"], row["healing"]))),
        )
        repair = style.repair_name(row["repair"], row["healing"])
        accuracy = style.interval(row["accuracy"], row["accuracy_stderr"])
        perplexity = style.interval(row["perplexity"], row["perplexity_stderr"], 2)
        text = f"{row['selector']}, {repair}: {accuracy}, perplexity {perplexity}, n = {row['n_samples']}"
        style.hints(axes, [(min(row["perplexity"], edge), row["accuracy"], text)])
    best = sorted(
        (row["perplexity"], row["accuracy"])
        for row in data
        if row["best"] and row["perplexity"] < edge
    )
    axes.plot(
        [x for x, _ in best], [y for _, y in best], color=style.NEUTRAL, linewidth=0.9, zorder=1
    )
    base = data[0]
    dashed: style.Look = dict(color="#999999", linewidth=0.8, linestyle="--", zorder=1)
    axes.axhline(base["accuracy_base"], **dashed)
    axes.axvline(base["perplexity_base"], **dashed)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("perplexity of general text")


def caption(data: style.Rows) -> str:
    return (
        "Every pair of selector and repair at each size: accuracy on the calibrations' own tasks against perplexity of "
        f"general text, means over {style.counts([row['n_calibrations'] for row in data]).replace('n = ', '')} "
        f"calibrations with 95 % intervals ({style.counts([row['n_samples'] for row in data])} test documents per "
        "point). Up and to the left is better: the line joins the pairs that no other beats in both. Dashed: the base "
        f"model; an arrow: beyond {FAR} times its perplexity. The intervals hold for these calibration samples; other "
        "draws of them may choose other layers."
    )

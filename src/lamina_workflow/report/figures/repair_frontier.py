"""Accuracy of smaller models on their own task against their perplexity on general text."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lamina.variant import describe_size
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "The task against everything else"
POSITION = 44
LEAD = 2
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models", "efficiency")
NEEDS = {"tasks": 1, "texts": 1}
QUERIES = ("which_pairs_nothing_beats",)

MARKER_FILLS: Any = ("none", "full", "left", "bottom", "right", "top")  # by repair
# Times the base model's perplexity. Beyond this, a model is ruined; by how much does not matter.
MAX_PERPLEXITY_RATIO = 30


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per model and size.

    Colours and markers are selectors, the fill of a marker is its repair.
    """
    groups = group_rows(rows, "model", "removed", "layers")
    repairs = style.list_repairs(rows)
    figure, panels = style.make_panels(len(groups), 3.6, 3.2, 3, sharey=True)
    for index, (axes, ((model, removed, layers), panel_rows)) in enumerate(
        zip(panels, groups.items(), strict=True)
    ):
        _draw_panel(axes, panel_rows, theme.selector_styles, repairs)
        is_whole = layers == removed
        size = describe_size(removed) if is_whole else f"{removed} sub-layers removed"
        axes.set_title(theme.format_title(model, size))
        if index % 3 == 0:
            axes.set_ylabel("accuracy on own tasks (share correct)")
    style.add_legend(figure, _legend_entries(rows, theme.selector_styles, repairs), 6)
    return figure


def _legend_entries(
    rows: style.Rows,
    selector_styles: dict[str, style.LineStyle],
    repairs: list[tuple[str, str]],
) -> list[tuple[str, style.LineStyle]]:
    """Selectors by their colours, repairs by their fills, and the lines."""
    drawn_selectors = {row["selector"] for row in rows}
    # Replicates share one style, so the first of them represents all.
    selector_by_style: dict[int, str] = {}
    for selector in reversed(selector_styles):
        if selector in drawn_selectors:
            selector_by_style[id(selector_styles[selector])] = selector
    legend_entries = []
    for selector in reversed(selector_by_style.values()):
        legend_entries.append((selector, _marker_style(selector_styles[selector], 1)))
    black: style.LineStyle = {"color": "black", "marker": "o"}
    for index, (repair, healing) in enumerate(repairs):
        legend_entries.append((style.format_repair(repair, healing), _marker_style(black, index)))
    legend_entries.append(("Pareto front", {"color": style.NEUTRAL, "linewidth": 0.9}))
    legend_entries.append(("base model", {"color": style.BASE_MODEL, "linestyle": "--"}))
    return legend_entries


def _marker_style(selector_style: style.LineStyle, repair_index: int) -> style.LineStyle:
    """The marker of a selector, filled as the repair with this index; the first is hollow."""
    return {
        "color": selector_style["color"],
        "marker": selector_style["marker"],
        "linestyle": "",
        "markersize": 6.5,
        "fillstyle": MARKER_FILLS[repair_index % len(MARKER_FILLS)],
        "markerfacecoloralt": "white",
    }


def _draw_panel(
    axes: Axes,
    rows: style.Rows,
    selector_styles: dict[str, style.LineStyle],
    repairs: list[tuple[str, str]],
) -> None:
    """Points with both intervals, the frontier, and the base model's two numbers."""
    edge = MAX_PERPLEXITY_RATIO * rows[0]["perplexity_base"]
    for row in rows:
        repair_index = repairs.index((row["repair"], row["healing"]))
        marker = _marker_style(selector_styles[row["selector"]], repair_index)
        _draw_point(axes, row, edge, marker)

    _draw_frontier(axes, rows, edge)
    dashed: style.LineStyle = {
        "color": style.BASE_MODEL,
        "linewidth": 0.8,
        "linestyle": "--",
        "zorder": 1,
    }
    axes.axhline(rows[0]["accuracy_base"], **dashed)
    axes.axvline(rows[0]["perplexity_base"], **dashed)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("perplexity of general text")


def _draw_point(axes: Axes, row: dict[str, Any], edge: float, marker: style.LineStyle) -> None:
    """A variant with both intervals. One beyond the edge is drawn at the edge, with an arrow."""
    is_inside = row["perplexity"] < edge
    perplexity_error: Any = [[0], [0.25 * edge]]
    if is_inside:
        perplexity_error = style.compute_half_width(row["perplexity_stderr"])
    axes.errorbar(
        row["perplexity"] if is_inside else edge,
        row["accuracy"],
        style.stack_reaches(
            [style.find_reach(row["accuracy"], row["accuracy_stderr"], row["n_samples"])]
        ),
        perplexity_error,
        xlolims=not is_inside,
        elinewidth=0.8,
        **marker,
    )
    accuracy = style.format_interval(row["accuracy"], row["accuracy_stderr"])
    perplexity = style.format_interval(row["perplexity"], row["perplexity_stderr"], 2)
    repair = style.format_repair(row["repair"], row["healing"])
    text = (
        f"{row['selector']}, {repair}: {accuracy}, perplexity {perplexity}, n = {row['n_samples']}"
    )
    style.add_hints(axes, [(min(row["perplexity"], edge), row["accuracy"], text)])


def _draw_frontier(axes: Axes, rows: style.Rows, edge: float) -> None:
    """A line through the variants that no other variant beats in both numbers."""
    best_rows = [row for row in rows if row["best"] and row["perplexity"] < edge]
    best_points = sorted((row["perplexity"], row["accuracy"]) for row in best_rows)
    x = [perplexity for perplexity, _ in best_points]
    y = [accuracy for _, accuracy in best_points]
    axes.plot(x, y, color=style.NEUTRAL, linewidth=0.9, zorder=1)


def write_caption(rows: style.Rows) -> str:
    calibration_counts = style.format_counts(row["n_calibrations"] for row in rows)
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    return (
        "Every pair of selector and repair at each size: accuracy on the calibrations' own tasks "
        "against perplexity of general text, as means over "
        f"{calibration_counts.removeprefix('n = ')} calibrations with 95 % intervals "
        f"({sample_counts} test documents per point). Up and to the left is better; the line is "
        "the Pareto front, the pairs that no other pair beats in both. Dashed: base model. Arrow: "
        f"more than {MAX_PERPLEXITY_RATIO} times its perplexity. The intervals hold for these "
        "calibration samples; other samples may lead to other layers."
    )

"""How a task's result falls as layers are removed, by selector, each as it is meant to be used.

A selector that chose its plans with a repair is drawn with this repair, and also bare.
"""

from itertools import pairwise
from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lamina.relevance.statistics import Z95
from lamina.variant import describe_size
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style

TITLE = "What pruning costs"
POSITION = 40
TABLES = ("benchmarks", "benchmark_samples", "calibrations", "plans", "models")
QUERIES = ("what_pruning_costs",)
BASE_BAND = "#d9d9d9"
BARE_STYLE: style.LineStyle = {"linewidth": 0.8, "markerfacecolor": "white", "alpha": 0.55}
AS_CHOSEN = " with its repair"
BARE = ", bare"


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """One panel per calibration and own task, one line per selector, 95 % error bars."""
    groups = group_rows(rows, "model", "calibration", "task")
    figure, panels = style.make_panels(len(groups), 3.5, 2.7, 3)
    for axes, (group, panel_rows) in zip(panels, groups.items(), strict=True):
        _draw_panel(axes, panel_rows, theme.selector_styles)
        axes.set_title(theme.format_task_title(group, groups))

    legend_entries: list[style.LegendEntry] = [
        *_selector_entries(rows, theme.selector_styles),
        ("base model, 95 %", Patch(color=BASE_BAND)),
        ("chance", style.CHANCE_STYLE),
    ]
    style.add_legend(figure, legend_entries, 4)
    return figure


def _selector_entries(
    rows: style.Rows, selector_styles: dict[str, style.LineStyle]
) -> list[tuple[str, style.LineStyle]]:
    """Legend entries of the drawn selectors; for replicates, with their number."""
    n_draws: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["n_draws"] > 1):
        n_draws[row["selector"]] = row["n_draws"]
    chose_repairs = {row["selector"] for row in rows if row["repair"] != "none"}
    legend_entries = []
    for selector, line_style in selector_styles.items():
        if selector not in n_draws:
            continue
        note = f" (mean of {n_draws[selector]})" if n_draws[selector] > 1 else ""
        marked_style = line_style | {"markersize": 4.5}
        if selector in chose_repairs:
            legend_entries.append((selector + AS_CHOSEN + note, marked_style))
            legend_entries.append((selector + BARE + note, marked_style | BARE_STYLE))
        else:
            legend_entries.append((selector + note, marked_style))
    return legend_entries


def _draw_panel(axes: Axes, rows: style.Rows, selector_styles: dict[str, style.LineStyle]) -> None:
    """Lines through the base model at size 0.

    They are shifted sideways a little so that error bars do not hide each other.
    """
    _draw_references(axes, rows[0])
    curves = _list_curves(rows, selector_styles)
    sizes = sorted({row["removed"] for row in rows})
    gap = min([1, *(larger - smaller for smaller, larger in pairwise(sizes))])
    for index, (points, line_style) in enumerate(curves):
        shift = (index - (len(curves) - 1) / 2) * 0.07 * gap
        _draw_curve(axes, points, shift, line_style)

    axes.set_xlim(min(0, *sizes) - 0.25 * gap, max(0, *sizes) + 0.35 * gap)
    axes.set_xticks(sorted({0, *sizes}))
    axes.set_xlabel(
        "units removed minus layers that run again" if sizes[0] < 1 else "units removed"
    )
    values = [rows[0]["base_value"], *(row["value"] for row in rows)]
    style.set_metric_scale(axes, rows[0]["metric"], values)


def _list_curves(
    rows: style.Rows, selector_styles: dict[str, style.LineStyle]
) -> list[tuple[style.Rows, style.LineStyle]]:
    """The points and style of each line: plans as they were chosen, and bare if that differs."""
    rows_by_selector = group_rows(rows, "selector")
    curves = []
    for selector, line_style in selector_styles.items():
        selector_rows = rows_by_selector.get((selector,), [])
        chosen_rows = [row for row in selector_rows if row["as_chosen"]]
        bare_rows = [row for row in selector_rows if row["repair"] == "none"]
        if chosen_rows:
            curves.append((chosen_rows, line_style))
        if bare_rows and bare_rows != chosen_rows:
            curves.append((bare_rows, line_style | BARE_STYLE))
    return curves


def _draw_references(axes: Axes, row: dict[str, Any]) -> None:
    """The base model's value with its interval, and the chance level if it is known."""
    base_value = row["base_value"]
    below, above = style.find_reach(base_value, row["base_stderr"], row["n_samples"])
    if isfinite(below):
        axes.axhspan(base_value - below, base_value + above, color=BASE_BAND, linewidth=0)
    axes.axhline(base_value, color=style.BASE_MODEL, linewidth=0.8)
    if row["chance"] is not None:
        axes.axhline(row["chance"], linewidth=1, **style.CHANCE_STYLE)


def _draw_curve(axes: Axes, points: style.Rows, shift: float, line_style: style.LineStyle) -> None:
    """The line of one selector through the base model; `points`, at least one, are in order."""
    x: list[float] = []
    y: list[float] = []
    reaches: list[tuple[float, float]] = []
    hints = []
    for row in points:
        x.append(row["removed"] + shift)
        y.append(row["value"])
        stderr = None if row["reach"] is None else row["reach"] / Z95
        reaches.append(style.find_reach(row["value"], stderr, row["n_samples"]))
        result = format_result(row, row["reach"])
        text = f"{row['selector']}{_note_repair(row)}, {describe_size(row['removed'])}: {result}"
        hints.append((x[-1], y[-1], text))
    n_larger_models = sum(row["removed"] < 0 for row in points)
    x.insert(n_larger_models, 0.0)
    y.insert(n_larger_models, points[0]["base_value"])
    reaches.insert(n_larger_models, (0.0, 0.0))
    bar_style: style.LineStyle = {
        "markersize": 4.5,
        "linewidth": 1.3,
        "elinewidth": 0.9,
        "capsize": 1.8,
    }
    axes.errorbar(x, y, style.stack_reaches(reaches), **(bar_style | line_style))
    style.add_hints(axes, hints)


def _note_repair(row: dict[str, Any]) -> str:
    if row["repair"] != "none":
        return f", {row['repair']}"
    return "" if row["as_chosen"] else BARE


def format_result(row: dict[str, Any], half_width: float | None) -> str:
    """The value of a row, its 95 % interval and number of samples, as text under the pointer."""
    stderr = None if half_width is None or not isfinite(half_width) else half_width / Z95
    interval = style.format_interval(row["value"], stderr)
    return f"{interval} {row['metric']}, n = {row['n_samples']}"


def write_caption(rows: style.Rows) -> str:
    sample_counts = style.format_counts(row["n_samples"] for row in rows)
    caption = (
        "Score on the calibration's own benchmark task against the number of units removed. Each "
        "plan has the repair that its selector chose for it, or else no repair. Thin lines with "
        "hollow markers: the plans that were chosen with a repair, measured without it. Points: "
        f"test-set values with 95 % intervals ({sample_counts} test documents per point); "
        "selectors are shifted sideways a little. Grey band: base model. Dotted: chance, where "
        "known. acc_norm is accuracy with log-likelihoods divided by the length of the choice. "
        "Accuracies are drawn from 0 to 1. Variants share their test documents, so differences "
        "between them have smaller errors than the bars suggest; the table of variants has paired "
        "intervals."
    )
    draws = [row["n_draws"] for row in rows if row["n_draws"] > 1]
    if draws:
        caption += (
            f" Replicates ({style.format_counts(draws)} draws) are shown as their mean. Their bars "
            "include the error of the documents and that of the draws (Student's t over draws of "
            "the selector and draws of the calibration, not over their combinations)."
        )
    return caption
